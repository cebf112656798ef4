"""BPE by tiktoken for byte-level vocabularies, with the tokenizer's own ids."""

import json
from collections.abc import Mapping
from typing import Any, Literal
from unicodedata import category, is_normalized

import tiktoken
from tokenizers import Tokenizer
from tokenizers.models import BPE

from baton.engine.checkpoint.token_bytes import byte_of_character

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

NORMAL_FORMS: Mapping[str, NormalForm] = {"NFC": "NFC", "NFD": "NFD", "NFKC": "NFKC", "NFKD": "NFKD"}
CHAR_S = 70e-9  # approximate encoding time per UTF-8 byte
MAX_CHARS = 1 << 16  # longest text for tiktoken: it cannot split a run of a million spaces

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # built into ByteLevel
CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Patterns for which the regex engines of both libraries were tested to agree on every Unicode character.
PATTERNS = frozenset({
    GPT2_PATTERN,
    CL100K_PATTERN.replace("DIGITS", r"\p{N}{1,3}"),
    CL100K_PATTERN.replace("DIGITS", r"\p{N}"),
    O200K_PATTERN,
})  # fmt: skip


class BytePairEncoder:
    """BPE by tiktoken, for texts without added tokens."""

    def __init__(self, encoding: tiktoken.Encoding, form: NormalForm | None) -> None:
        """`form`: the tokenizer's Unicode normal form; None: no normalisation."""
        self._encoding = encoding
        self._form: NormalForm | None = form

    def cost_s(self, text: str) -> float | None:
        """Return the estimated seconds to encode a text; None if it must not be encoded here."""
        if len(text) > MAX_CHARS:
            return None
        if text.isascii():
            return len(text) * CHAR_S
        if self._form is not None and not (is_normalized(self._form, text) and all(map(_is_known, set(text)))):
            return None
        return len(text.encode()) * CHAR_S

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text for which `cost_s` is not None. Releases the GIL."""
        return self._encoding.encode_ordinary(text)


def make_byte_pair_encoder(tokenizer: Tokenizer) -> BytePairEncoder | None:
    """Return a tiktoken encoder for a tokenizer; None if its token ids might differ from the tokenizer's."""
    parts: Mapping[str, Any] = json.loads(tokenizer.to_str())
    normalizer, pattern = parts["normalizer"], _word_pattern(parts["pre_tokenizer"])
    form = None if normalizer is None else NORMAL_FORMS.get(normalizer["type"])
    if pattern not in PATTERNS or (normalizer is not None and form is None):
        return None
    ranks = _ranks(tokenizer, parts["model"])
    if ranks is None:
        return None
    encoding = tiktoken.Encoding("model", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return BytePairEncoder(encoding, form)


def _is_known(character: str) -> bool:
    """Return whether this Python's Unicode tables have the character, and thus its normal form."""
    return category(character) != "Cn"


def _word_pattern(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """Return the pattern that splits a text into words: ByteLevel's own, or that of a preceding Split."""
    if pre_tokenizer is None:
        return None
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    if steps[-1]["type"] != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    if len(steps) == 1:
        return GPT2_PATTERN if steps[0]["use_regex"] else None
    split = steps[0]
    if len(steps) > 2 or steps[-1]["use_regex"] or split["type"] != "Split":
        return None
    isolates = split["behavior"] == "Isolated" and not split["invert"]
    pattern: str | None = split["pattern"].get("Regex")
    return pattern if isolates else None


def _ranks(tokenizer: Tokenizer, model: Mapping[str, Any]) -> dict[bytes, int] | None:
    """Return the id of each token by its bytes; None if merging by ids differs from the model's merges."""
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if model["type"] != "BPE" or model.get("dropout") or model.get("byte_fallback") or affixes:
        return None
    vocabulary: Mapping[str, int] = model["vocab"]
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    merged = [vocabulary["".join(pair)] for pair in pairs]
    if merged != sorted(merged):
        return None
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    tokens = {token: token_id for token, token_id in vocabulary.items() if token not in added}
    table = byte_of_character()
    if not table.keys() <= tokens.keys() or not all(map(table.keys().__ge__, map(set, tokens))):
        return None
    if not _are_made_by_merges(tokenizer.model, tokens):
        return None
    return {bytes([table[each] for each in token]): token_id for token, token_id in tokens.items()}


def _are_made_by_merges(model: BPE, tokens: Mapping[str, int]) -> bool:
    """Return whether the bytes of each token are merged to that token."""
    ignored_merges, model.ignore_merges = model.ignore_merges, False
    try:
        return all([token.id for token in model.tokenize(each)] == [token_id] for each, token_id in tokens.items())
    finally:
        model.ignore_merges = ignored_merges
