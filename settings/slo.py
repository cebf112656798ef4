"""Service level objectives on the command line: `ttft=1s,tpot=50ms`."""

import re
from collections.abc import Sequence

from baton.settings.values import OptionError, shown

UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0}
DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*(\w*)")


def parse_slo(text: str, names: Sequence[str] = ("ttft", "tpot")) -> dict[str, float]:
    """Return the limits in seconds by name. Raises OptionError for an unknown or repeated name, or a wrong time."""
    limits: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        name, equals, value = part.partition("=")
        if not equals or name not in names:
            raise OptionError(f"{shown(part)} is not an objective; write {_example(names)} (names: {', '.join(names)})")
        if name in limits:
            raise OptionError(f"{name} is given twice")
        limits[name] = _seconds(part, value)
    if not limits:
        raise OptionError(f"it is empty; write {_example(names)}")
    return limits


def _seconds(part: str, text: str) -> float:
    match = DURATION.fullmatch(text)
    if match is None or match[2] not in ("", *UNITS_S):
        raise OptionError(f"{shown(part)} has no time with a unit; write it like 50ms, 1.5s or 2m")
    if not match[2]:
        raise OptionError(f"{shown(part)} has no unit; write {text}s or {text}ms")
    seconds = float(match[1]) * UNITS_S[match[2]]
    if not 0 < seconds < float("inf"):
        raise OptionError(f"{shown(part)} must be above 0")
    return seconds


def _example(names: Sequence[str]) -> str:
    times = {"ttft": "1s", "tpot": "50ms", "e2el": "10s"}
    return ",".join(f"{name}={times[name]}" for name in names)
