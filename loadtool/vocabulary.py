"""Tokens that synthetic prompts are made of, and their text."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from baton.loadtool.errors import SettingError

TokenIds = NDArray[np.uint32]

WORD = re.compile(
    r"[\u0120\u2581]([A-Za-z]{2,})"
)  # a word behind a space, as byte-level BPE and SentencePiece write it
MAX_WORDS = 4096
MIN_WORDS = 64


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids to draw from. With a tokenizer they are words, whose ids do not depend on their neighbours."""

    token_ids: TokenIds
    tokenizer: Tokenizer | None = None
    words: dict[int, str] | None = None  # with a leading space; None: no text

    def draw(self, rng: np.random.Generator, count: int) -> TokenIds:
        """Return `count` random tokens."""
        return self.token_ids[rng.integers(len(self.token_ids), size=count)]

    def text(self, token_ids: TokenIds) -> str:
        """Return the text that is tokenized to these tokens. Raises SettingError without a tokenizer."""
        if self.words is None:
            raise SettingError("text prompts of given lengths need --tokenizer DIRECTORY")
        words = self.words
        return "".join([words[token_id] for token_id in token_ids.tolist()])

    def num_tokens(self, text: str) -> int:
        """Return the number of tokens of a text. Raises SettingError without a tokenizer."""
        if self.tokenizer is None:
            raise SettingError("counting a text's tokens needs --tokenizer DIRECTORY")
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def token_range(first: int, last: int) -> Vocabulary:
    """Return a vocabulary of the ids from `first` to `last`, for an unknown tokenizer. Raises SettingError."""
    if not 0 <= first < last:
        raise SettingError(f"--token-ids {first}:{last}: the first must be below the last")
    return Vocabulary(np.arange(first, last + 1, dtype=np.uint32))


def read_vocabulary(path: Path) -> Vocabulary:
    """Return the words of a tokenizer.json, or of a directory with one. Raises SettingError if there are too few."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise SettingError(f"--tokenizer {path}: no readable tokenizer.json: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    words = _stable_words(tokenizer)
    if len(words) < MIN_WORDS:
        raise SettingError(f"--tokenizer {path}: only {len(words)} words are single tokens; {MIN_WORDS} are needed")
    return Vocabulary(np.array(list(words), dtype=np.uint32), tokenizer, words)


def _stable_words(tokenizer: Tokenizer) -> dict[int, str]:
    """Return words that are a single token after another word, so that a text has as many tokens as words."""
    candidates = [
        (token_id, " " + match[1])
        for token, token_id in sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
        if (match := WORD.fullmatch(token))
    ]
    candidates = candidates[:: max(1, len(candidates) // MAX_WORDS)]
    encoded = tokenizer.encode_batch([word + word for _, word in candidates], add_special_tokens=False)
    return {
        token_id: word
        for (token_id, word), encoding in zip(candidates, encoded, strict=True)
        if encoding.ids[-1] == token_id and len(encoding.ids) == 2  # SentencePiece may split off the first word's space
    }
