"""A JSON object read with checked types, so that a wrong key is named instead of failing far from the file."""

import json
from pathlib import Path

from engine.errors import InvalidCheckpoint


class JsonObject:
    """The object in one JSON file, or one inside it. A null counts as an absent key."""

    def __init__(self, values: dict[str, object], source: str) -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self.source = source

    @classmethod
    def read(cls, path: Path) -> "JsonObject":
        """Reads a file; InvalidCheckpoint if it is missing or holds anything but an object."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidCheckpoint(f"{path} does not exist") from None
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
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

    def number(self, key: str, default: float | None = None) -> float:
        """A number; without a default the key must be there."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
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
        return InvalidCheckpoint(f"{self.source}: {key} must be {expected}, not {value!r}")
