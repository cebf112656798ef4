"""Token ids of texts by their words, each of which the model's tokenizer is asked for once."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from unicodedata import is_normalized

from tokenizers import Tokenizer

from router.ascii_pattern import UnknownPattern, ascii_pattern, covers_ascii
from router.character_kinds import CharacterKinds
from router.python_words import PythonWords
from router.token_bytes import byte_of_character

try:
    from router.native.word_encoder import CompiledWords
except ImportError:  # nothing was compiled when this was installed
    CompiledWords = None  # type: ignore[assignment, misc]  # there is no optional class for mypy

NormalForm = Literal["NFC", "NFD", "NFKC", "NFKD"]

logger = logging.getLogger(__name__)

LONG_S = "\u017f"  # to a pattern that ignores case, this is an s too
NORMAL_FORMS: Mapping[str, NormalForm] = {"NFC": "NFC", "NFD": "NFD", "NFKC": "NFKC", "NFKD": "NFKD"}
FOREIGN_BYTE_S = 150e-9  # of a byte beyond one a character: of languages whose words are long and seldom met again
COMPILED_CHAR_S, PYTHON_CHAR_S = 10e-9, 80e-9  # of English text on a common core
PART_WORDS = 4096  # encoded at one go; between two of them other threads get their turn
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # of ByteLevel itself
CL100K_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class CompiledPattern:
    """A pattern that the compiled words know."""

    cl100k: bool  # else gpt2
    max_digits: int = 0  # of a word


COMPILED_PATTERNS: Mapping[str, CompiledPattern] = {
    GPT2_PATTERN: CompiledPattern(cl100k=False),
    CL100K_PATTERN.replace("DIGITS", r"\p{N}{1,3}"): CompiledPattern(cl100k=True, max_digits=3),
    CL100K_PATTERN.replace("DIGITS", r"\p{N}"): CompiledPattern(cl100k=True, max_digits=1),
}


class Words(Protocol):
    """Words met so far, with their token ids."""

    def encode(self, text: str, start: int, max_words: int) -> tuple[list[int], int]:
        """The ids of about `max_words` words from `start` on, and where the next word begins."""


class WordEncoder:
    """Encodes texts for byte-level BPE, which encodes each word by itself."""

    def __init__(self, words: Words, char_s: float, only_ascii: bool, form: NormalForm | None) -> None:
        """`char_s`: about what a character costs, in seconds; `form`: what the tokenizer normalises texts to."""
        self._words = words
        self._char_s = char_s
        self._only_ascii = only_ascii
        self._form: NormalForm | None = form

    def cost_s(self, text: str) -> float | None:
        """About the seconds that encoding the text takes; None if it cannot be encoded by words."""
        if text.isascii():
            return len(text) * self._char_s
        if self._only_ascii or LONG_S in text or (self._form is not None and not is_normalized(self._form, text)):
            return None
        return len(text) * self._char_s + (len(text.encode()) - len(text)) * FOREIGN_BYTE_S

    def encode(self, text: str) -> list[int]:
        """Token ids of a text that has a cost and no added tokens in it. Raises UnknownCharacter."""
        token_ids, place = self._words.encode(text, 0, PART_WORDS)
        while place < len(text):
            time.sleep(0)  # lets go of the interpreter lock
            part, place = self._words.encode(text, place, PART_WORDS)
            token_ids += part
        return token_ids


def make_word_encoder(tokenizer: Tokenizer) -> WordEncoder | None:
    """The word encoder of a byte-level BPE tokenizer; None for one that splits texts in a way not understood here."""
    parts: Mapping[str, Any] = json.loads(tokenizer.to_str())
    normalizer = parts["normalizer"]
    form: NormalForm | None = None if normalizer is None else NORMAL_FORMS.get(normalizer["type"])
    if not _encodes_words(parts["model"]) or (normalizer is not None and form is None):
        return None
    pattern = _word_pattern(parts["pre_tokenizer"])
    if pattern is None:
        return None
    learn = _word_learner(tokenizer)
    compiled = COMPILED_PATTERNS.get(pattern)
    if compiled is not None and CompiledWords is not None:
        words = CompiledWords(compiled.cl100k, compiled.max_digits, CharacterKinds().kind, learn)
        return WordEncoder(words, COMPILED_CHAR_S, only_ascii=False, form=form)
    try:
        found = ascii_pattern(pattern)
    except UnknownPattern as error:
        logger.info("prompts are encoded by the tokenizer alone; words are split by an unknown pattern: %s", error)
        return None
    if not covers_ascii(found):
        return None
    return WordEncoder(PythonWords(found, learn), PYTHON_CHAR_S, only_ascii=True, form=form)


def _word_learner(tokenizer: Tokenizer) -> Callable[[str], Sequence[int]]:
    """Gives the ids of a word as the tokenizer's model has them; one object for each id, whichever word it is in."""
    model = tokenizer.model
    letters = {byte: character for character, byte in byte_of_character().items()}
    numbers: dict[int, int] = {}

    def learn(word: str) -> Sequence[int]:
        tokens = model.tokenize("".join([letters[byte] for byte in word.encode()]))
        return tuple([numbers.setdefault(token.id, token.id) for token in tokens])

    return learn


def _encodes_words(model: Mapping[str, Any]) -> bool:
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    return model["type"] == "BPE" and not model.get("dropout") and not affixes


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
