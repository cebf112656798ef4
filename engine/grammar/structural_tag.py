"""Structural tags: free text with parts that follow a format (xgrammar's "structural tag" in JSON)."""

from baton.engine.grammar.json_schema import MAX_COUNT, check_schema
from baton.engine.grammar.place import Place
from baton.engine.grammar.regex import check_counts, check_regex

MAX_PARTS = 4096  # JSON objects outside of schemas
SCHEMA_TYPES = ("json_schema", "qwen_xml_parameter")


def check_structural_tag(tag: object) -> None:
    """Raise ValueError for a tag whose schemas or regular expressions would not be enforced as they are."""
    if not isinstance(tag, dict):
        raise ValueError("it must be a JSON object")
    pending: list[tuple[Place, object]] = [(Place(), tag)]
    num_parts = 0
    while pending:
        place, current = pending.pop()
        num_parts += isinstance(current, dict)
        if num_parts > MAX_PARTS:
            raise ValueError(f"the tag has over {MAX_PARTS} parts; simplify it")
        if isinstance(current, list):
            pending += [(Place(f"[{number}]", place), inner) for number, inner in enumerate(current)]
        elif isinstance(current, dict):
            try:
                _check_format(current)
            except ValueError as error:
                raise ValueError(f"{str(place) or 'the tag'}: {error}") from None
            pending += [(Place(f".{name}", place), inner) for name, inner in current.items() if name != "json_schema"]


def _check_format(part: dict[str, object]) -> None:
    if part.get("max_tokens") is not None:
        # The compiler counts tokens only while masks are filled, so a moved request would get other tokens.
        raise ValueError("max_tokens in a structural tag is not supported; bound the length by a regex")
    for name in ("min", "max"):
        if part.get("type") == "repeat" and isinstance(count := part.get(name), int) and count > MAX_COUNT:
            raise ValueError(f"{name} must be at most {MAX_COUNT}")
    if part.get("type") in SCHEMA_TYPES and "json_schema" in part:
        check_schema(part["json_schema"])
    elif part.get("type") == "regex" and isinstance(part.get("pattern"), str):
        check_regex(str(part["pattern"]))
    elif part.get("type") == "grammar" and isinstance(part.get("grammar"), str):
        check_counts(str(part["grammar"]))
