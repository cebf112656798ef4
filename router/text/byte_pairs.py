"""Token ids of byte-level BPE by tiktoken: the tokenizer library's own ids, in a third of its time.

tiktoken merges whichever two neighbours together are a token, in the order of the token ids, where a tokenizer.json
lists the merges. Both come to the same if ids follow the order of the merges, and each token is what its own bytes
are merged to: then no two other tokens than the listed ones ever stand beside each other when they could be merged.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal
from unicodedata import category, is_normalized

import tiktoken
from tokenizers import Tokenizer
from tokenizers.models import BPE

from baton.router.text.token_bytes import byte_of_character

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

NORMAL_FORMS: Mapping[str, NormalForm] = {"NFC": "NFC", "NFD": "NFD", "NFKC": "NFKC", "NFKD": "NFKD"}
CHAR_S = 70e-9  # of a character's UTF-8 byte, about
MAX_CHARS = 1 << 16  # of a text: a million spaces in a row are more than tiktoken can split

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of ByteLevel itself
CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Those that both libraries' pattern engines were seen to read alike, for every character of Unicode.
PATTERNS = frozenset({
    GPT2_PATTERN,
    CL100K_PATTERN.replace("DIGITS", r"\p{N}{1,3}"),
    CL100K_PATTERN.replace("DIGITS", r"\p{N}"),
    O200K_PATTERN,
})  # fmt: skip


class BytePairEncoder:
    """Encodes texts without added tokens."""

    def __init__(self, encoding: tiktoken.Encoding, form: NormalForm | None) -> None:
        """`form`: what the tokenizer normalises texts to."""
        self._encoding = encoding
        self._form: NormalForm | None = form

    def cost_s(self, text: str) -> float | None:
        """About the seconds that encoding the text takes; None if it is not to be encoded here."""
        if len(text) > MAX_CHARS:
            return None
        if text.isascii():
            return len(text) * CHAR_S
        if self._form is not None and not (is_normalized(self._form, text) and all(map(_is_known, set(text)))):
            return None
        return len(text.encode()) * CHAR_S

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that has a cost. Lets go of the interpreter lock."""
        return self._encoding.encode_ordinary(text)


def make_byte_pair_encoder(tokenizer: Tokenizer) -> BytePairEncoder | None:
    """The encoder of a tokenizer; None if its ids might be others than the tokenizer's."""
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
    """Whether this Python knows the character, and so what it is normalised to."""
    return category(character) != "Cn"


def _word_pattern(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """The pattern whose matches become words: ByteLevel's own, or that of a Split before it."""
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
    """Each token's bytes and id; None if merging by ids is not the same as by the model's merges."""
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
    """Whether each of the tokens is what its own bytes are merged to."""
    ignored_merges, model.ignore_merges = model.ignore_merges, False
    try:
        return all([token.id for token in model.tokenize(each)] == [token_id] for each, token_id in tokens.items())
    finally:
        model.ignore_merges = ignored_merges
