"""Token ids of prompts, where most of a prompt was often seen before: the turns of a chat, a shared system prompt.

Exactly the tokenizer's own ids. A text is cut at added tokens, which chat templates put around each turn; a piece is
looked up in the cache; one that is not there is encoded by tiktoken where that is known to be the same, else by the
tokenizer. Who has a cache salt finds only what came with the same: nobody learns by timing what another asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from baton.router.text.byte_pairs import make_byte_pair_encoder
from baton.router.text.prompt_cache import PromptCache
from baton.router.text.segments import make_text_segments

BACKEND_CHAR_S = 300e-9  # of a character for the tokenizer itself, about


@dataclass(slots=True)
class PromptDraft:
    """A prompt on its way to its token ids."""

    pieces: Sequence[str]  # text and added tokens in turn
    found: dict[str, Sequence[int]]  # ids of pieces of text
    missing: Mapping[str, bool]  # pieces of text that are to be encoded; whether tiktoken does it
    cost_s: float  # about what encoding what is missing takes
    cache_salt: str


class PromptEncoder:
    """Owns the cache of encoded pieces. `look_up` and `finish` are for one thread, `encode` for any."""

    def __init__(self, tokenizer: Tokenizer, max_cache_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._segments = make_text_segments(tokenizer)
        self._byte_pairs = make_byte_pair_encoder(tokenizer) if self._segments is not None else None
        self._cache = PromptCache(max_cache_bytes)
        last_id = max(tokenizer.get_vocab().values(), default=-1)
        self._numbers = list(range(last_id + 1))  # one object for each id, whoever remembers it

    def look_up(self, text: str, cache_salt: str = "") -> PromptDraft:
        """The prompt with what the cache has of it."""
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
        """Finds what is missing."""
        draft.found.update((piece, self._encode(piece, by_pairs)) for piece, by_pairs in draft.missing.items())

    def finish(self, draft: PromptDraft) -> list[int]:
        """The token ids, without a template's beginning and end tokens; what was missing is remembered."""
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
        else:  # the batch call, unlike the single one, lets go of the interpreter lock
            [encoding] = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            token_ids = encoding.ids
        numbers = self._numbers
        return [numbers[token_id] for token_id in token_ids]
