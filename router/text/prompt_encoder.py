"""Tokenisation of prompts with a cache: most of a prompt was often seen before, as system prompt or earlier turns.

The result is exactly the tokenizer's. A text is split at added tokens, which chat templates put around each turn. Each
piece is looked up in the cache. A missing piece is encoded by tiktoken if the result is known to be the same, otherwise
by the tokenizer. The cache is keyed by cache salt, so timing reveals nothing about the prompts of other tenants.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

from tokenizers import Tokenizer

from baton.router.text.byte_level import make_byte_pair_encoder

# Steps that process each piece of text independently. (Metaspace, for example, treats the start of a text specially.)
LOCAL_STEPS = frozenset({
    "Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Replace", "StripAccents", "ByteLevel", "Split", "Digits",
    "Punctuation", "Whitespace", "WhitespaceSplit",
})  # fmt: skip
MAX_CUTS = 8192  # per text; each piece takes some microseconds on the event loop


@dataclass(frozen=True, slots=True)
class TextSegments:
    """Splits texts at added tokens. The tokenizer does so first, too, before normalisation: the result is the same."""

    pattern: re.Pattern[str]  # one group: an added token
    token_ids: Mapping[str, int]  # of the added tokens

    def cut(self, text: str) -> list[str] | None:
        """Return pieces of text, which may be empty, alternating with added tokens; None: over `MAX_CUTS`."""
        pieces = self.pattern.split(text, maxsplit=MAX_CUTS)
        return pieces if len(pieces) <= 2 * MAX_CUTS else None


def make_text_segments(tokenizer: Tokenizer) -> TextSegments | None:
    """Return how to split texts at added tokens; None if the tokens of a piece may depend on its neighbours."""
    added = list(tokenizer.get_added_tokens_decoder().items())
    if tokenizer.encode_special_tokens:
        return None  # special tokens in a text are encoded as plain text
    if any(token.lstrip or token.rstrip or token.single_word for _, token in added):
        return None
    parts: Mapping[str, Any] = json.loads(tokenizer.to_str())
    if not all(_is_local(parts[step]) for step in ("normalizer", "pre_tokenizer")) or parts["model"].get("dropout"):
        return None
    normalized = [
        token.normalized for _, token in added
    ]  # the tokenizer finds these in normalised text, after the others
    if any(normalized) and (parts["normalizer"] is not None or not all(normalized)):
        return None
    token_ids = {token.content: token_id for token_id, token in added if token.content}
    return TextSegments(re.compile(f"({_any_of(token_ids) or '(?!)'})"), token_ids)


def _any_of(words: Collection[str]) -> str:
    """Return a pattern that matches the longest of the words. It is a trie, so near misses are cheap."""
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


Key = tuple[str, str]  # cache salt and text

ENTRY_BYTES = 300  # approximate overhead of a cache entry
REFERENCE_BYTES = 8


class PromptCache:
    """LRU cache of texts and their token ids, bounded in bytes. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, Sequence[int]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Sequence[int] | None:
        """Return the text's token ids; None if they are not cached."""
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def put(self, key: Key, token_ids: Sequence[int]) -> None:
        """Add token ids and evict the least recently used ones. Ignores entries over a quarter of the cache."""
        size = _size(key, token_ids)
        if size > self._max_bytes // 4 or key in self._entries:
            return
        self._entries[key] = token_ids
        self.num_bytes += size
        while self.num_bytes > self._max_bytes:
            self.num_bytes -= _size(*self._entries.popitem(last=False))


def _size(key: Key, token_ids: Sequence[int]) -> int:
    """Return the bytes of an entry; the int objects are shared between entries."""
    return ENTRY_BYTES + sum(map(getsizeof, key)) + REFERENCE_BYTES * len(token_ids)


BACKEND_CHAR_S = 300e-9  # approximate encoding time of the tokenizer per character


@dataclass(slots=True)
class PromptDraft:
    """A prompt that is being tokenised."""

    pieces: Sequence[str]  # alternating text and added tokens
    found: dict[str, Sequence[int]]  # token ids by piece of text
    missing: Mapping[str, bool]  # pieces of text to encode; True: by tiktoken
    cost_s: float  # estimated time to encode the missing pieces
    cache_salt: str


class PromptEncoder:
    """Encoder with a cache of pieces. Call `look_up` and `finish` in one thread; `encode` is thread-safe."""

    def __init__(self, tokenizer: Tokenizer, max_cache_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._segments = make_text_segments(tokenizer)
        self._byte_pairs = make_byte_pair_encoder(tokenizer) if self._segments is not None else None
        self._cache = PromptCache(max_cache_bytes)
        last_id = max(tokenizer.get_vocab().values(), default=-1)
        self._numbers = list(range(last_id + 1))  # one int object per id, shared by all cache entries

    def look_up(self, text: str, cache_salt: str = "") -> PromptDraft:
        """Split a prompt, and look up its pieces in the cache."""
        pieces = None if self._segments is None else self._segments.cut(text)
        if pieces is None:
            return PromptDraft([text], {}, {text: False}, BACKEND_CHAR_S * len(text), cache_salt)
        found: dict[str, Sequence[int]] = {}
        missing: dict[str, bool] = {}
        cost_s = 0.0
        for piece in dict.fromkeys(pieces[::2]):
            token_ids = self._cache.get((cache_salt, piece))
            if token_ids is not None:
                found[piece] = token_ids
            elif piece:
                pairs_s = self._byte_pairs.cost_s(piece) if self._byte_pairs is not None else None
                missing[piece] = pairs_s is not None
                cost_s += len(piece) * BACKEND_CHAR_S if pairs_s is None else pairs_s
        return PromptDraft(pieces, found, missing, cost_s, cache_salt)

    def encode(self, draft: PromptDraft) -> None:
        """Encode the missing pieces."""
        draft.found.update((piece, self._encode(piece, by_pairs)) for piece, by_pairs in draft.missing.items())

    def finish(self, draft: PromptDraft) -> list[int]:
        """Return the token ids, without the post-processor's special tokens. Caches the pieces that were missing."""
        if self._segments is None:
            return list(draft.found.get(draft.pieces[0], ()))
        for piece in draft.missing:
            self._cache.put((draft.cache_salt, piece), draft.found[piece])
        token_ids: list[int] = []
        added, found, is_added = self._segments.token_ids, draft.found, False
        for piece in draft.pieces:
            if is_added:
                token_ids.append(added[piece])
            elif piece:
                token_ids += found[piece]
            is_added = not is_added
        return token_ids

    def _encode(self, piece: str, by_pairs: bool) -> Sequence[int]:
        if self._byte_pairs is not None and by_pairs:
            token_ids = self._byte_pairs.encode(piece)
        else:  # unlike the single call, the batch call releases the GIL
            [encoding] = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            token_ids = encoding.ids
        numbers = self._numbers
        return [numbers[token_id] for token_id in token_ids]
