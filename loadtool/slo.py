"""Service level objectives for goodput."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from baton.loadtool.errors import SettingError
from baton.loadtool.record import RequestRecord
from baton.settings import slo
from baton.settings.values import OptionError

NAMES = ("ttft", "tpot", "e2el")
MILLISECONDS = re.compile(r"\d+(\.\d*)?")


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None

    def is_good(self, record: RequestRecord) -> bool:
        """Whether the request completed within every limit."""
        if record.failure is not None:
            return False
        measured = ((self.ttft_s, record.ttft_s), (self.tpot_s, record.tpot_s or 0.0), (self.e2el_s, record.e2e_s))
        return all(limit_s is None or took_s <= limit_s for limit_s, took_s in measured)

    def __str__(self) -> str:
        limits = zip(NAMES, (self.ttft_s, self.tpot_s, self.e2el_s), strict=True)
        return ",".join(f"{name}={limit_s * 1000:g}ms" for name, limit_s in limits if limit_s is not None)


def parse_slo(parts: Iterable[str]) -> Slo | None:
    """Parse `ttft=1s,tpot=50ms`, or vLLM's form `ttft:1000 tpot:50`; None if empty. Raises SettingError."""
    words = [word for text in parts for word in text.replace(",", " ").split()]
    if not words:
        return None
    try:
        limits = slo.parse_slo(",".join(map(_with_unit, words)), NAMES)
    except OptionError as error:
        raise SettingError(f"--slo: {error}") from error
    return Slo(limits.get("ttft"), limits.get("tpot"), limits.get("e2el"))


def _with_unit(word: str) -> str:
    name, _, limit_ms = word.partition(":")
    return f"{name}={limit_ms}ms" if MILLISECONDS.fullmatch(limit_ms) else word
