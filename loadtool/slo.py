"""What a request must keep to count as good."""

from collections.abc import Iterable
from dataclasses import dataclass

from baton.loadtool.errors import SettingError
from baton.loadtool.record import RequestRecord

NAMES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: no limit."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2el_s: float | None = None

    def is_good(self, record: RequestRecord) -> bool:
        """Whether the answer came whole and kept every limit."""
        if record.failure is not None:
            return False
        measured = ((self.ttft_s, record.ttft_s), (self.tpot_s, record.tpot_s or 0.0), (self.e2el_s, record.e2e_s))
        return all(limit_s is None or took_s <= limit_s for limit_s, took_s in measured)

    def __str__(self) -> str:
        limits = zip(NAMES, (self.ttft_s, self.tpot_s, self.e2el_s), strict=True)
        return " ".join(f"{name}:{limit_s * 1000:g}" for name, limit_s in limits if limit_s is not None)


def parse_slo(parts: Iterable[str]) -> Slo | None:
    """`ttft:500 tpot:50`, in milliseconds; None for nothing. Raises SettingError."""
    limits: dict[str, float] = {}
    for part in (word for text in parts for word in text.replace(",", " ").split()):
        name, _, text = part.partition(":")
        try:
            limit_ms = float(text)
        except ValueError:
            limit_ms = -1.0
        if name not in NAMES or not limit_ms > 0 or name in limits:
            raise SettingError(f"--goodput {part}: must be like ttft:500 tpot:50 e2el:10000, each once, in ms")
        limits[name] = limit_ms / 1000
    return Slo(limits.get("ttft"), limits.get("tpot"), limits.get("e2el")) if limits else None
