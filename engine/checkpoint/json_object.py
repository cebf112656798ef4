"""A JSON object with type-checked access, so that errors name the file and key."""

import json
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from baton.engine.errors import InvalidCheckpoint

MAX_FILE_BYTES = 100 << 20
MAX_SIZE = (1 << 31) - 1
MAX_NUMBER = 1e30
MAX_SHOWN_CHARS = 100


class JsonObject:
    """Top-level object of a JSON file, or an object nested in it. Keys with null count as absent.

    It remembers which keys were read, so that values without an effect can be found.
    """

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self._values = {key: value for key, value in values.items() if value is not None}
        self.nulls = values.keys() - self._values.keys()  # keys with null
        self.source = source
        self._reads: set[str] = set()
        self._inner: dict[str, JsonObject] = {}

    @property
    def values(self) -> dict[str, object]:
        """All values; all of them count as read."""
        self._reads.update(self._values)
        return self._values

    @property
    def has_inner(self) -> bool:
        """Whether a value is an object."""
        return any(isinstance(value, dict) for value in self._values.values())

    def raw(self, key: str) -> object:
        """Return a value of any type; None if the key is absent."""
        self._reads.add(key)
        return self._values.get(key)

    def changed(self, values: Mapping[str, object]) -> "JsonObject":
        """Return the object with other values of some keys. Keys that are read from it count as read here."""
        other = JsonObject(dict.fromkeys(self.nulls) | self._values | dict(values), self.source)
        other._reads = self._reads
        other._inner = {key: inner for key, inner in self._inner.items() if key not in values}
        return other

    def unread(self, values: Mapping[str, object]) -> Iterator[str]:
        """Yield the paths of those of these values, which the object has, that were not read."""
        for key, value in values.items():
            if key not in self._reads:
                yield _printable(key)
            elif key in self._inner and isinstance(value, dict):
                yield from (f"{_printable(key)}.{path}" for path in self._inner[key].unread(value))

    @property
    def reads(self) -> frozenset[str]:
        """Keys that were read, whether the object has them or not."""
        return frozenset(self._reads)

    @classmethod
    def read(cls, path: Path) -> "JsonObject":
        """Read a file. Raises InvalidCheckpoint if it is missing, unreadable or does not hold an object."""
        values = _read_json(path)
        if not isinstance(values, dict):
            raise InvalidCheckpoint(f"{path} holds no JSON object")
        return cls(values, str(path))

    @classmethod
    def read_list(cls, path: Path) -> "list[JsonObject]":
        """Read a file with a list of objects. Raises InvalidCheckpoint if it is missing, damaged or another value."""
        values = _read_json(path)
        if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
            raise InvalidCheckpoint(f"{path} holds no list of JSON objects")
        return [cls(each, f"{path}[{place}]") for place, each in enumerate(values)]

    def __contains__(self, key: str) -> bool:
        self._reads.add(key)
        return key in self._values

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer; without a default the key is required."""
        value = self._get(key, default)
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        return value

    def size(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_SIZE) -> int:
        """Return an integer within bounds; without a default the key is required."""
        value = self.integer(key, default)
        if not minimum <= value <= maximum:
            raise self._wrong(key, f"from {minimum} to {maximum}", value)
        return value

    def number(
        self, key: str, default: float | None = None, *, minimum: float = -MAX_NUMBER, maximum: float = MAX_NUMBER
    ) -> float:
        """Return a number within bounds, never NaN; without a default the key is required."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        if not minimum <= value <= maximum:
            raise self._wrong(key, f"a number from {minimum:g} to {maximum:g}", value)
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        """Return a boolean, or the default if the key is absent."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; without a default the key is required."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def integers(self, key: str) -> list[int]:
        """Return a list of integers, also if the value is a single integer; empty if the key is absent."""
        value = self._get(key, [])
        entries = value if isinstance(value, list) else [value]
        numbers = [entry for entry in entries if isinstance(entry, int) and not isinstance(entry, bool)]
        if len(numbers) != len(entries):
            raise self._wrong(key, "a whole number or a list of whole numbers", value)
        return numbers

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers, none NaN; empty if the key is absent."""
        value = self._get(key, [])
        entries = value if isinstance(value, list) else [value]
        numbers = [each for each in entries if isinstance(each, int | float) and not isinstance(each, bool)]
        if len(numbers) != len(entries) or not all(abs(number) <= MAX_NUMBER for number in numbers):
            raise self._wrong(key, "a list of numbers", value)
        return [float(number) for number in numbers]

    def texts(self, key: str) -> list[str]:
        """Return a list of strings; empty if the key is absent."""
        value = self._get(key, [])
        if not isinstance(value, list) or any(not isinstance(text, str) for text in value):
            raise self._wrong(key, "a list of strings", value)
        return value

    def inner(self, key: str) -> "JsonObject":
        """Return a nested object; empty if the key is absent."""
        if key not in self._inner:
            value = self._get(key, {})
            if not isinstance(value, dict):
                raise self._wrong(key, "an object", value)
            self._inner[key] = JsonObject(value, f"{self.source}: {_printable(key)}")
        return self._inner[key]

    def _get(self, key: str, default: object) -> object:
        self._reads.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise InvalidCheckpoint(f"{self.source}: {key} is missing")
        return value

    def _wrong(self, key: str, expected: str, value: object) -> InvalidCheckpoint:
        return InvalidCheckpoint(f"{self.source}: {_printable(key)} must be {expected}, not {shown(value)}")


def shown(value: object) -> str:
    """Format a value from a file for an error message: truncated, with unprintable characters escaped."""
    short = reprlib.Repr()
    short.maxstring = short.maxlong = short.maxother = MAX_SHOWN_CHARS
    return short.repr(value)


def _printable(key: str) -> str:
    """Return a key, which may be any text in an object with names as keys, for an error message."""
    return key if key.isprintable() and len(key) <= MAX_SHOWN_CHARS else shown(key)


def _read_json(path: Path) -> object:
    try:
        return json.loads(_read_text(path))
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path} does not exist") from None
    except RecursionError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: it is nested too deeply") from error
    except (OSError, ValueError) as error:  # not UTF-8, not JSON, or a number with thousands of digits
        raise InvalidCheckpoint(f"{path} cannot be read: {error}") from error


def _read_text(path: Path) -> str:
    """Read a text file. Raises OSError if it is not a regular file, which may be endless, ValueError if not UTF-8."""
    num_bytes = path.stat().st_size
    if not path.is_file():
        raise OSError("it is not a regular file")
    if num_bytes > MAX_FILE_BYTES:
        raise ValueError(f"it has {num_bytes} bytes, over the limit of {MAX_FILE_BYTES}")
    return path.read_text(encoding="utf-8")
