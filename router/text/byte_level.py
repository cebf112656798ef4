"""Byte-level vocabularies: the bytes of each token, and BPE by tiktoken with the tokenizer's own ids."""

import json
import re
from collections.abc import Mapping
from typing import Any, Literal
from unicodedata import category, is_normalized

import tiktoken
from tokenizers import Tokenizer
from tokenizers.models import BPE

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
METASPACE = "\u2581"


def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2's table).

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return table


class TokenBytes:
    """Looks tokens up; owns what it found so far."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        parts = json.loads(tokenizer.to_str()).get("decoder")
        # Whether a text is its tokens' bytes one after the other.
        self.concatenate = parts is not None and parts["type"] == "ByteLevel"
        decoder = json.dumps(parts, ensure_ascii=False)
        self._byte_level = '"ByteLevel"' in decoder
        self._sentencepiece = not self._byte_level and ('"ByteFallback"' in decoder or METASPACE in decoder)
        self._added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        self._byte_of_character = byte_of_character()
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._find(token_id)
        return known

    def _find(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""  # models may have more logits than the vocabulary has tokens
        if self._byte_level:
            table = self._byte_of_character
            if all(each in table for each in token):
                return bytes([table[each] for each in token])
            return token.encode()  # a text that was put into the vocabulary as it is
        if self._sentencepiece:
            byte = BYTE_TOKEN.fullmatch(token)
            return bytes([int(byte[1], 16)]) if byte else token.replace(METASPACE, " ").encode()
        return self._tokenizer.decode([token_id], skip_special_tokens=False).encode()


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
