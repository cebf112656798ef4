"""The share of a transfer that the prompt's computation hides."""

import pytest

from baton.decode_worker.read_times import Read, ReadTimes


def test_reads_before_the_last_chunk_are_hidden() -> None:
    times = ReadTimes([Read(1.0, 0.2), Read(2.0, 0.3), Read(5.2, 0.2)], last_computed_at_s=5.0, complete_at_s=5.3)
    assert times.transfer_s == pytest.approx(0.7)
    assert times.exposed_transfer_s == pytest.approx(0.2)
    assert times.handover_s == pytest.approx(0.3)


def test_a_read_in_progress_is_partly_hidden() -> None:
    times = ReadTimes()
    times.note_computed(5.0, 5.05)
    times.note_read(5.1, 0.4)
    assert times.exposed_transfer_s == pytest.approx(0.1)


def test_an_incomplete_handover_has_no_duration() -> None:
    times = ReadTimes(last_computed_at_s=5.0)
    assert times.exposed_transfer_s == 0
    assert times.handover_s == 0


@pytest.mark.parametrize("other_clock_s", [7.0, 1_000_000.0, -3.0])
def test_another_hosts_clock_is_ignored(other_clock_s: float) -> None:
    times = ReadTimes()
    times.note_computed(other_clock_s, 5.0 if other_clock_s == 7.0 else 500.0)
    assert times.last_computed_at_s == (5.0 if other_clock_s == 7.0 else 500.0)


def test_phases_begin_with_the_first_read() -> None:
    times = ReadTimes([Read(1.0, 0.25), Read(5.5, 0.75)], last_computed_at_s=5.0, complete_at_s=6.0)
    assert times.phases_s == {"pull": 5.25, "read": 1.0, "exposed": 0.5, "tail": 1.0}
