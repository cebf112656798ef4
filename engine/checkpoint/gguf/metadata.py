"""Type-checked access to a GGUF file's metadata, so that errors name the file and key."""

from typing import TypeVar

from baton.engine.checkpoint.json_object import shown
from baton.engine.errors import InvalidCheckpoint

T = TypeVar("T", int, float, bool, str)


class Metadata:
    """Metadata of a model; keys of its architecture are read without it."""

    def __init__(self, values: dict[str, object], source: str) -> None:
        """Raise InvalidCheckpoint if there is no architecture."""
        self._values = values
        self.source = source
        self.architecture = self.text("general.architecture")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def size(self, key: str, default: int | None = None) -> int:
        """Return a whole number of the architecture. Raises InvalidCheckpoint if it is missing without a default."""
        return self._of(f"{self.architecture}.{key}", int, default)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number of the architecture."""
        return self._of(f"{self.architecture}.{key}", float, default)

    def has(self, key: str) -> bool:
        """Return whether the architecture has a key."""
        return f"{self.architecture}.{key}" in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text."""
        return self._of(key, str, default)

    def integer(self, key: str) -> int | None:
        """Return a whole number; None if it is missing."""
        return self._of(key, int, None) if key in self._values else None

    def boolean(self, key: str, default: bool) -> bool:
        """Return true or false."""
        return self._of(key, bool, default)

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        return self._list(key, str)

    def integers(self, key: str) -> list[int]:
        """Return a list of whole numbers."""
        return self._list(key, int)

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers."""
        return self._list(key, float)

    def _of(self, key: str, kind: type[T], default: T | None) -> T:
        value = self._values.get(key, default)
        if value is None:
            raise InvalidCheckpoint(f"{self.source}: {key} is missing")
        if kind is int and isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]  # one for each layer
        if isinstance(value, bool) is not (kind is bool) or not isinstance(
            value, kind | int if kind is float else kind
        ):
            raise InvalidCheckpoint(f"{self.source}: {key} must be {_NAMES[kind]}, not {shown(value)}")
        return kind(value)

    def _list(self, key: str, kind: type[T]) -> list[T]:
        value = self._values.get(key)
        if not isinstance(value, list) or not all(type(each) is kind for each in value):
            raise InvalidCheckpoint(f"{self.source}: {key} must be a list, each of it {_NAMES[kind]}")
        return value


_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
