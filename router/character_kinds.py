"""What a character is to a tokenizer's splitting pattern, by the tokenizer library's own tables."""

from enum import IntEnum
from unicodedata import category

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split


class CharacterKind(IntEnum):
    """The classes that the known patterns tell apart."""

    OTHER = 0
    LETTER = 1
    DIGIT = 2
    SPACE = 3


class UnknownCharacter(Exception):
    """A character that this Python does not know, so nor what it is normalised to."""


class CharacterKinds:
    """Classifies single characters."""

    def __init__(self) -> None:
        patterns = {r"\p{L}": CharacterKind.LETTER, r"\p{N}": CharacterKind.DIGIT, r"\s": CharacterKind.SPACE}
        self._kinds = [(Split(Regex(pattern), "removed"), kind) for pattern, kind in patterns.items()]

    def kind(self, character: str) -> CharacterKind:
        """Its class. Raises UnknownCharacter."""
        if category(character) == "Cn":
            raise UnknownCharacter(f"U+{ord(character):04X}")
        for split, kind in self._kinds:
            if not split.pre_tokenize_str(character):
                return kind
        return CharacterKind.OTHER
