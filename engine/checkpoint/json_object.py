"""A JSON object read with checked types, so that a wrong key is named instead of failing far from the file."""

import json
import reprlib
from pathlib import Path

from baton.engine.errors import InvalidCheckpoint

MAX_FILE_BYTES = 100 << 20
MAX_SIZE = (1 << 31) - 1
MAX_NUMBER = 1e30
MAX_SHOWN_CHARS = 100


class JsonObject:
    """The object in one JSON file, or one inside it. A null counts as an absent key."""

    def __init__(self, values: dict[str, object], source: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self.source = source

    @classmethod
    def read(cls, path: Path) -> "JsonObject":
        """Reads a file; InvalidCheckpoint if it is missing or holds anything but an object."""
        try:
            values = json.loads(_read_text(path))
        except FileNotFoundError:
            raise InvalidCheckpoint(f"{path} does not exist") from None
        except RecursionError as error:
            raise InvalidCheckpoint(f"{path} cannot be read: it is nested too deeply") from error
        except (OSError, ValueError) as error:  # no UTF-8, no JSON, or a number of thousands of digits
            raise InvalidCheckpoint(f"{path} cannot be read: {error}") from error
        if not isinstance(values, dict):
            raise InvalidCheckpoint(f"{path} holds no JSON object")
        return cls(values, str(path))

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number; without a default the key must be there."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        return value

    def size(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """A whole number that counts something, within bounds; without a default the key must be there."""
        value = self.integer(key, default)
        if not minimum <= value <= maximum:
            raise self._wrong(key, f"from {minimum} to {maximum}", value)
        return value

    def number(
        self, key: str, default: float | None = None, *, minimum: float = -MAX_NUMBER, maximum: float = MAX_NUMBER
    ) -> float:
        """A number within bounds, never NaN; without a default the key must be there."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        if not minimum <= value <= maximum:
            raise self._wrong(key, f"a number from {minimum:g} to {maximum:g}", value)
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; without a default the key must be there."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers, or one alone; empty if the key is absent."""
        value = self.values.get(key, [])
        entries = value if isinstance(value, list) else [value]
        numbers = [entry for entry in entries if isinstance(entry, int) and not isinstance(entry, bool)]
        if len(numbers) != len(entries):
            raise self._wrong(key, "a whole number or a list of them", value)
        return numbers

    def texts(self, key: str) -> list[str]:
        """A list of strings; empty if the key is absent."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or any(not isinstance(text, str) for text in value):
            raise self._wrong(key, "a list of strings", value)
        return value

    def inner(self, key: str) -> "JsonObject":
        """An object inside; empty if the key is absent."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return JsonObject(value, f"{self.source}: {key}")

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(key, default)
        if value is None:
            raise InvalidCheckpoint(f"{self.source}: {key} is missing")
        return value

    def _wrong(self, key: str, expected: str, value: object) -> InvalidCheckpoint:
        return InvalidCheckpoint(f"{self.source}: {key} must be {expected}, not {shown(value)}")


def shown(value: object) -> str:
    """A value out of a file in an error's text: shortened, and with what cannot be printed escaped."""
    short = reprlib.Repr()
    short.maxstring = short.maxlong = short.maxother = MAX_SHOWN_CHARS
    return short.repr(value)


def _read_text(path: Path) -> str:
    """A file's text. Raises OSError for what is no file, which may have no end, and ValueError for what is no text."""
    num_bytes = path.stat().st_size
    if not path.is_file():
        raise OSError("it is no file")
    if num_bytes > MAX_FILE_BYTES:
        raise ValueError(f"it has {num_bytes} bytes, over the limit of {MAX_FILE_BYTES}")
    return path.read_text(encoding="utf-8")
