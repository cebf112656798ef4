"""The Python twin of the compiled word encoder."""

import re
from collections.abc import Callable, Sequence
from itertools import islice

MAX_WORDS = 1 << 16  # remembered; then they are learnt anew
MAX_WORD_CHARS = 64  # of a word that is remembered


class PythonWords:
    """Owns the words met so far, with their token ids."""

    def __init__(self, pattern: re.Pattern[str], learn: Callable[[str], Sequence[int]]) -> None:
        """`pattern` has no gaps between its matches; `learn` gives the ids of a word."""
        self._find = pattern.finditer
        self._learn = learn
        self._known: dict[str, Sequence[int]] = {}

    def encode(self, text: str, start: int, max_words: int) -> tuple[list[int], int]:
        """The ids of at most `max_words` words from `start` on, and where the next word begins."""
        words = [found[0] for found in islice(self._find(text, start), max_words)]
        known = self._known
        try:
            token_ids = [token_id for word in words for token_id in known[word]]
        except KeyError:
            token_ids = [token_id for word in words for token_id in self._find_ids(word)]
        return token_ids, start + sum(map(len, words))

    def _find_ids(self, word: str) -> Sequence[int]:
        found = self._known.get(word)
        if found is None:
            found = self._learn(word)
            if len(self._known) >= MAX_WORDS:
                self._known = {}
            if len(word) <= MAX_WORD_CHARS:
                self._known[word] = found
        return found
