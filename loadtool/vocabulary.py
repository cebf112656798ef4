"""The tokens that made-up prompts consist of, and the text that they stand for."""

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
    """Token ids to draw from; with a tokenizer they are words that stay themselves whatever words stand beside them."""

    token_ids: TokenIds
    tokenizer: Tokenizer | None = None
    words: dict[int, str] | None = None  # with the space before them; None: there is no text

    def draw(self, rng: np.random.Generator, count: int) -> TokenIds:
        """So many tokens at random."""
        return self.token_ids[rng.integers(len(self.token_ids), size=count)]

    def text(self, token_ids: TokenIds) -> str:
        """The text that a tokenizer turns into these tokens. Raises SettingError without a tokenizer."""
        if self.words is None:
            raise SettingError("prompts of given lengths are text here, which needs --tokenizer DIRECTORY")
        words = self.words
        return "".join([words[token_id] for token_id in token_ids.tolist()])

    def num_tokens(self, text: str) -> int:
        """Tokens of a text. Raises SettingError without a tokenizer."""
        if self.tokenizer is None:
            raise SettingError("to count a text's tokens --tokenizer DIRECTORY is needed")
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def token_range(first: int, last: int) -> Vocabulary:
    """The ids from first to last, where nothing is known of the server's tokenizer."""
    if not 0 <= first < last:
        raise SettingError(f"--token-ids {first}:{last}: the first must be below the last")
    return Vocabulary(np.arange(first, last + 1, dtype=np.uint32))


def read_vocabulary(path: Path) -> Vocabulary:
    """The words of a tokenizer.json, or of the directory that has one. Raises SettingError if there are too few."""
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower one
        raise SettingError(f"--tokenizer {path}: no tokenizer.json that can be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    words = _stable_words(tokenizer)
    if len(words) < MIN_WORDS:
        raise SettingError(
            f"--tokenizer {path}: only {len(words)} words are tokens of their own; {MIN_WORDS} are needed"
        )
    return Vocabulary(np.array(list(words), dtype=np.uint32), tokenizer, words)


def _stable_words(tokenizer: Tokenizer) -> dict[int, str]:
    """Words that are one token each behind another word, so that a text of them has as many tokens as words."""
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
        if encoding.ids[-1] == token_id and len(encoding.ids) == 2  # SentencePiece may read the first one's space apart
    }
