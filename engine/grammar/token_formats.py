"""Tokens that a structural tag names: a special token is no text, so a grammar allows it only by its name or id.

xgrammar matches a token as one unit where a format names it (`token`), and otherwise by its text. A special token has
the text SPECIAL_TEXT: it begins with a byte that no character has, so no text format matches it. Free text is the
exception, since it may have any bytes: in a tag that names tokens it excludes the character that follows.
"""

from collections.abc import Callable
from dataclasses import dataclass

EXCLUDED_CHARACTER = "\U0010fffe"  # no character by Unicode, and so in no text
SPECIAL_TEXT = b"\xff" + EXCLUDED_CHARACTER.encode()
FREE_TEXTS = ("any_text", "triggered_tags", "dispatch")
TOKEN_LISTS = ("exclude_tokens", "trigger_tokens")
XML_SCHEMA = "qwen_xml_parameter"  # an older name of a schema in the style qwen_xml


@dataclass(frozen=True, slots=True)
class ResolvedTag:
    """A structural tag whose tokens are ids."""

    tag: object
    token_ids: frozenset[int]  # those that the tag names


class TokenResolver:
    """Resolver of the tokens that structural tags name."""

    def __init__(self, token_id_of: Callable[[str], int | None], vocab_size: int) -> None:
        """token_id_of: id of a token by its text; None if there is none."""
        self._token_id_of = token_id_of
        self._vocab_size = vocab_size

    def resolve(self, tag: object) -> ResolvedTag:
        """Return a tag with ids instead of texts. Raises ValueError for a token that the vocabulary does not have."""
        token_ids: set[int] = set()
        resolved = self._resolved(tag, token_ids)
        return ResolvedTag(without_special_tokens(resolved) if token_ids else resolved, frozenset(token_ids))

    def _resolved(self, part: object, token_ids: set[int]) -> object:
        if isinstance(part, list):
            return [self._resolved(each, token_ids) for each in part]
        if not isinstance(part, dict):
            return part
        return {name: self._member(part, name, value, token_ids) for name, value in part.items()}

    def _member(self, part: dict[str, object], name: str, value: object, token_ids: set[int]) -> object:
        if name == "json_schema":
            return value
        if name == "token":
            token_ids.add(token_id := self._token_id(value))
            return token_id
        if name in TOKEN_LISTS and isinstance(value, list):
            found = [self._token_id(each) for each in value]
            if name == "trigger_tokens":
                token_ids.update(found)
            return found
        if name == "rules" and part.get("type") == "token_dispatch" and isinstance(value, list):
            return [self._rule(rule, token_ids) for rule in value]
        return self._resolved(value, token_ids)

    def _rule(self, rule: object, token_ids: set[int]) -> object:
        if not isinstance(rule, list) or len(rule) != 2:
            raise ValueError("a rule of token_dispatch must be a list of a token and a format")
        token_ids.add(token_id := self._token_id(rule[0]))
        return [token_id, self._resolved(rule[1], token_ids)]

    def _token_id(self, token: object) -> int:
        token_id = self._token_id_of(token) if isinstance(token, str) else token
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < self._vocab_size:
            raise ValueError(f"the vocabulary has no token {str(token)[:80]!r}")
        return token_id


def without_special_tokens(part: object) -> object:
    """Return a structural tag, whose schemas have no lengths left, such that its free texts do not match SPECIAL_TEXT.

    The compiler would ignore lengths next to `excludes`: `compilable_tag` has made them patterns.
    """
    if isinstance(part, list):
        return [without_special_tokens(each) for each in part]
    if not isinstance(part, dict):
        return part
    rewritten = {
        name: value if name == "json_schema" else without_special_tokens(value) for name, value in part.items()
    }
    if rewritten.get("type") == XML_SCHEMA:
        rewritten |= {"type": "json_schema", "style": "qwen_xml"}
    kind, excludes = rewritten.get("type"), rewritten.get("excludes") or []
    is_xml = kind == "json_schema" and rewritten.get("style", "json") != "json"
    # A string in JSON is free text only if it excludes something.
    if (kind in FREE_TEXTS or is_xml or (kind == "json_schema" and excludes)) and isinstance(excludes, list):
        rewritten["excludes"] = [*excludes, EXCLUDED_CHARACTER]
    return rewritten
