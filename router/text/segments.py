"""Texts cut at the tokens that were added to the vocabulary: what lies between two is tokenised by itself."""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

# Steps that look at one piece of text at a time. (Metaspace, for one, treats a text's beginning in its own way.)
LOCAL_STEPS = frozenset({
    "Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace", "StripAccents", "ByteLevel", "Split", "Digits",
    "Punctuation", "Whitespace", "WhitespaceSplit",
})  # fmt: skip
MAX_CUTS = 8192  # of one text; the event loop takes some microseconds for each piece


@dataclass(frozen=True, slots=True)
class TextSegments:
    """Cuts texts; the tokenizer finds added tokens first, before it normalises, so that a cut changes nothing."""

    pattern: re.Pattern[str]  # one group: an added token
    token_ids: Mapping[str, int]  # of the added tokens

    def cut(self, text: str) -> list[str] | None:
        """Pieces of text, which may be empty, with an added token between each two; None: there would be too many."""
        pieces = self.pattern.split(text, maxsplit=MAX_CUTS)
        return pieces if len(pieces) <= 2 * MAX_CUTS else None


def make_text_segments(tokenizer: Tokenizer) -> TextSegments | None:
    """How the tokenizer cuts texts; None if a piece's tokens may depend on what is beside it."""
    added = list(tokenizer.get_added_tokens_decoder().items())
    if tokenizer.encode_special_tokens:
        return None  # special tokens within a text are texts like others
    if any(token.lstrip or token.rstrip or token.single_word for _, token in added):
        return None
    parts: Mapping[str, Any] = json.loads(tokenizer.to_str())
    if not all(_is_local(parts[step]) for step in ("normalizer", "pre_tokenizer")) or parts["model"].get("dropout"):
        return None
    normalized = [token.normalized for _, token in added]  # these are looked for in normalised text, after the others
    if any(normalized) and (parts["normalizer"] is not None or not all(normalized)):
        return None
    token_ids = {token.content: token_id for token_id, token in added if token.content}
    return TextSegments(re.compile(f"({_any_of(token_ids) or '(?!)'})"), token_ids)


def _any_of(words: Collection[str]) -> str:
    """A pattern of any of the words, the longest that is there; as a tree, so that a near miss costs little."""
    tails: dict[str, list[str]] = {}
    for word in words:
        if word:
            tails.setdefault(word[0], []).append(word[1:])
    branches = [re.escape(head) + _any_of(rest) for head, rest in tails.items()]
    if not branches:
        return ""
    pattern = f"(?:{'|'.join(branches)})" if len(branches) > 1 or "" in words else branches[0]
    return f"{pattern}?" if "" in words else pattern


def _is_local(step: Mapping[str, Any] | None) -> bool:
    if step is None:
        return True
    inner = step.get("pretokenizers") or step.get("normalizers") or []
    return step["type"] in LOCAL_STEPS and all(map(_is_local, inner))
