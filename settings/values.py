"""Values of options, from a command line's text or a YAML file's scalars, checked against a field's type."""

import math
import re
import reprlib
from dataclasses import dataclass

Value = str | int | float | bool | tuple[str, ...] | None

SIZE_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
MAX_INT = (1 << 63) - 1
MAX_SHOWN_CHARS = 200
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]i?)?b?\s*", re.IGNORECASE)


class OptionError(ValueError):
    """An option is unknown, missing or has a value that it cannot have; the text names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What an option's value may be, beyond its type."""

    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None

    def __str__(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"at least {self.minimum:g}"
        return f"at most {self.maximum:g}" if self.maximum is not None else ""

    def allow(self, value: Value) -> bool:
        """Whether a value of the right type is within the bounds."""
        if isinstance(value, str):
            return not self.choices or value in self.choices
        if isinstance(value, int | float):
            return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)
        return True


class _Short(reprlib.Repr):
    """Values in few words: aliases in a file can make a small one endless to print."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxlong = self.maxother = MAX_SHOWN_CHARS

    def repr_int(self, x: int, level: int) -> str:
        """Python itself does not print numbers of over 4,300 digits."""
        return super().repr_int(x, level) if abs(x) <= MAX_INT else f"a number of {x.bit_length()} bits"


def shown(value: object) -> str:
    """A value in an error's text: shortened, and with what cannot be printed escaped."""
    return _Short().repr(value)


def shown_name(name: str) -> str:
    """The same for the name of an option, which stands there as it is if it can."""
    return name if name.isprintable() and len(name) <= MAX_SHOWN_CHARS else shown(name)


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 1048576, 1e9, 512M, 1.5GB (powers of 1000) or 4GiB (powers of 1024); else ValueError.

    OverflowError for a number that is none in floating point.
    """
    match = SIZE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * SIZE_UNITS[(match[2] or "").lower()])


def parse_int(value: object) -> int:
    """A whole number of 64 bits; ValueError if it is none (a boolean is none)."""
    if isinstance(value, str):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= MAX_INT:
        return value
    raise ValueError


def parse_size(value: object) -> int:
    """Bytes as a whole number (1e9 is one) or a text with a unit; ValueError if it is neither."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return parse_int(parse_bytes(value) if isinstance(value, str) else value)


def parse_float(value: object) -> float:
    """A finite number; ValueError if it is none, OverflowError if it is too large for one."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or not math.isfinite(float(value)):
        raise ValueError(value)
    return float(value)


def parse_bool(value: object) -> bool:
    """true or false; ValueError if it is neither."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(value)


def parse_text(value: object) -> str:
    """A text, or a number as a YAML file has it for a text such as a name; ValueError for anything else."""
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(value)
    raise ValueError(value)


def parse_texts(value: object) -> tuple[str, ...]:
    """Several texts: a list, or one text with commas; ValueError for anything else."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if isinstance(value, list | tuple):
        return tuple(parse_text(part) for part in value)
    raise ValueError(value)
