"""The clock offset of another machine."""

from collections.abc import Iterable
from dataclasses import dataclass

from baton.doctor.finding import Finding, ok, warning

MAX_OFFSET_S = 0.5  # in addition to the reading's uncertainty


@dataclass(frozen=True, slots=True)
class ClockReading:
    """A remote clock read between two readings of the local one; seconds since 1970."""

    sent_s: float
    theirs_s: float
    received_s: float

    @property
    def round_trip_s(self) -> float:
        """Seconds from request to response."""
        return self.received_s - self.sent_s

    @property
    def offset_s(self) -> float:
        """Seconds that the remote clock is ahead, assuming symmetric delays (as NTP does, RFC 5905)."""
        return self.theirs_s - (self.sent_s + self.received_s) / 2

    @property
    def uncertainty_s(self) -> float:
        """Largest error of the offset, in seconds."""
        return self.round_trip_s / 2


def best(readings: Iterable[ClockReading]) -> ClockReading:
    """Return the most precise reading."""
    return min(readings, key=lambda reading: reading.round_trip_s)


def check_clock(reading: ClockReading, check: str = "clock-skew") -> Finding:
    """Check that the clocks agree. Tokens do not depend on it, but leases in Redis, logs and traces do."""
    found = (
        f"{reading.offset_s * 1e3:+.1f} ms from this machine's clock, within {reading.uncertainty_s * 1e3:.1f} ms "
        f"(round trip {reading.round_trip_s * 1e3:.1f} ms)"
    )
    if abs(reading.offset_s) - reading.uncertainty_s <= MAX_OFFSET_S:
        return ok(check, found)
    return warning(check, found, "synchronize both machines with the same time source, by chrony or systemd-timesyncd")
