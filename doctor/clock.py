"""How far another machine's clock is from ours."""

from collections.abc import Iterable
from dataclasses import dataclass

from baton.doctor.finding import Finding, ok, warning

MOST_OFFSET_S = 0.5  # beyond what the round trip leaves open


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Another clock, read between two looks at ours; all in seconds since 1970."""

    sent_s: float
    theirs_s: float
    received_s: float

    @property
    def round_trip_s(self) -> float:
        """From the question to the answer."""
        return self.received_s - self.sent_s

    @property
    def offset_s(self) -> float:
        """How much theirs is ahead, if the answer took as long as the question (as NTP, RFC 5905, assumes)."""
        return self.theirs_s - (self.sent_s + self.received_s) / 2

    @property
    def uncertainty_s(self) -> float:
        """The offset is right within this."""
        return self.round_trip_s / 2


def best(readings: Iterable[ClockReading]) -> ClockReading:
    """The one that says most."""
    return min(readings, key=lambda reading: reading.round_trip_s)


def check_clock(reading: ClockReading, check: str = "clock-skew") -> Finding:
    """Whether the two agree; tokens do not depend on it, but leases in Redis, logs and traces do."""
    found = (
        f"{reading.offset_s * 1e3:+.1f} ms from this machine's clock, within {reading.uncertainty_s * 1e3:.1f} ms "
        f"(round trip {reading.round_trip_s * 1e3:.1f} ms)"
    )
    if abs(reading.offset_s) - reading.uncertainty_s <= MOST_OFFSET_S:
        return ok(check, found)
    return warning(check, found, "let both machines follow one time source: chrony, or systemd-timesyncd")
