"""Another clock, read over a round trip."""

import pytest

from baton.doctor.clock import ClockReading, best, check_clock
from baton.doctor.finding import Level


def test_the_offset_is_taken_in_the_middle_of_the_round_trip() -> None:
    reading = ClockReading(sent_s=100.0, theirs_s=103.5, received_s=101.0)
    assert (reading.offset_s, reading.uncertainty_s) == (3.0, 0.5)
    assert best([ClockReading(0, 0, 2), reading]) is reading


@pytest.mark.parametrize(
    ("theirs_s", "received_s", "level"),
    [
        (100.001, 100.002, Level.OK),
        (101.0, 100.0, Level.WARNING),
        (99.0, 100.0, Level.WARNING),
        (101.0, 102.0, Level.OK),  # too uncertain after such a long round trip
    ],
)
def test_findings_of_clocks(theirs_s: float, received_s: float, level: Level) -> None:
    assert check_clock(ClockReading(100.0, theirs_s, received_s)).level is level
