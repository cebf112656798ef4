"""Texts cut at the tokens that were added to the vocabulary: what lies between two is tokenised by itself."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

# Steps that look at one piece of text at a time. (Metaspace, for one, treats a text's beginning in its own way.)
LOCAL_STEPS = frozenset({
    "Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace", "StripAccents", "ByteLevel", "Split", "Digits",
    "Punctuation", "Whitespace", "WhitespaceSplit",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TextSegments:
    """Cuts texts; the tokenizer finds added tokens first, before it normalises, so that a cut changes nothing."""

    pattern: re.Pattern[str]  # one group: an added token
    token_ids: Mapping[str, int]  # of the added tokens

    def cut(self, text: str) -> list[str]:
        """Pieces of text, which may be empty, with an added token between each two."""
        return self.pattern.split(text)


def make_text_segments(tokenizer: Tokenizer) -> TextSegments | None:
    """How the tokenizer cuts texts; None if a piece's tokens may depend on what is beside it."""
    added = list(tokenizer.get_added_tokens_decoder().items())
    if any(token.lstrip or token.rstrip or token.single_word for _, token in added):
        return None
    parts: Mapping[str, Any] = json.loads(tokenizer.to_str())
    if not all(_is_local(parts[step]) for step in ("normalizer", "pre_tokenizer")) or parts["model"].get("dropout"):
        return None
    normalized = [token.normalized for _, token in added]  # these are looked for in normalised text, after the others
    if any(normalized) and (parts["normalizer"] is not None or not all(normalized)):
        return None
    token_ids = {token.content: token_id for token_id, token in added if token.content}
    longest_first = sorted(token_ids, key=len, reverse=True)  # the first that matches counts, as the tokenizer has it
    pattern = "|".join(map(re.escape, longest_first)) or "(?!)"
    return TextSegments(re.compile(f"({pattern})"), token_ids)


def _is_local(step: Mapping[str, Any] | None) -> bool:
    if step is None:
        return True
    inner = step.get("pretokenizers") or step.get("normalizers") or []
    return step["type"] in LOCAL_STEPS and all(map(_is_local, inner))
