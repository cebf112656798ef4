"""Token ids of prompts, where most of a prompt was often seen before: the turns of a chat, a shared system prompt.

Exactly the tokenizer's own ids. A text is cut at added tokens, which chat templates put around each turn; a piece is
looked up in the cache; one that is not there is encoded by its words where that is known to be the same (byte-level
tokenizers with a known way to split texts), else by the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from router.character_kinds import UnknownCharacter
from router.prompt_cache import PromptCache
from router.text_segments import make_text_segments
from router.word_encoder import make_word_encoder

BACKEND_CHAR_S = 300e-9  # of a character for the tokenizer itself, about


@dataclass(slots=True)
class PromptDraft:
    """A prompt on its way to its token ids."""

    pieces: Sequence[str]  # text and added tokens in turn
    found: dict[str, Sequence[int]]  # ids of pieces of text
    missing: Sequence[str]
    cost_s: float  # about what encoding what is missing takes


class PromptEncoder:
    """Owns the cache of encoded pieces. `look_up` and `finish` are for one thread, `encode` for any."""

    def __init__(self, tokenizer: Tokenizer, max_cache_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._segments = make_text_segments(tokenizer)
        self._words = make_word_encoder(tokenizer) if self._segments is not None else None
        self._cache = PromptCache(max_cache_bytes)
        self._numbers = list(range(tokenizer.get_vocab_size()))  # one object for each id, whoever remembers it

    def look_up(self, text: str) -> PromptDraft:
        """The prompt with what the cache has of it."""
        if self._segments is None:
            return PromptDraft([text], {}, [text], BACKEND_CHAR_S * len(text))
        pieces = self._segments.cut(text)
        found: dict[str, Sequence[int]] = {}
        missing: list[str] = []
        cost_s = 0.0
        for piece in dict.fromkeys(pieces[::2]):
            token_ids = self._cache.get(piece)
            if token_ids is not None:
                found[piece] = token_ids
            elif piece:
                missing.append(piece)
                words_s = self._words.cost_s(piece) if self._words is not None else None
                cost_s += len(piece) * BACKEND_CHAR_S if words_s is None else words_s
        return PromptDraft(pieces, found, missing, cost_s)

    def encode(self, draft: PromptDraft) -> None:
        """Finds what is missing."""
        draft.found.update((piece, self._encode(piece)) for piece in draft.missing)

    def finish(self, draft: PromptDraft) -> list[int]:
        """The token ids, without a template's beginning and end tokens; what was missing is remembered."""
        if self._segments is None:
            return list(draft.found.get(draft.pieces[0], ()))
        for piece in draft.missing:
            self._cache.put(piece, draft.found[piece])
        token_ids: list[int] = []
        added, found, is_added = self._segments.token_ids, draft.found, False
        for piece in draft.pieces:
            if is_added:
                token_ids.append(added[piece])
            elif piece:
                token_ids += found[piece]
            is_added = not is_added
        return token_ids

    def _encode(self, piece: str) -> Sequence[int]:
        if self._words is not None and self._words.cost_s(piece) is not None:
            try:
                return self._words.encode(piece)
            except UnknownCharacter:  # rare: a character younger than this Python
                pass
        # The batch call, unlike the single one, lets go of the interpreter lock.
        [encoding] = self._tokenizer.encode_batch_fast([piece], add_special_tokens=False)
        return [self._numbers[token_id] for token_id in encoding.ids]
