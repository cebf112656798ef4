"""What of a transfer was hidden behind the prompt's computation."""

import pytest

from decode_worker.handover import ReadTimes


def test_reads_before_the_last_chunk_are_hidden() -> None:
    times = ReadTimes(reads=[(1.0, 0.2), (2.0, 0.3), (5.2, 0.2)], last_computed_at_s=5.0)
    assert times.transfer_s == pytest.approx(0.7)
    assert times.exposed_transfer_s == pytest.approx(0.2)


def test_a_read_that_was_under_way_is_hidden_in_part() -> None:
    times = ReadTimes(reads=[(5.1, 0.4)], last_computed_at_s=5.0)
    assert times.exposed_transfer_s == pytest.approx(0.1)


def test_without_reads_nothing_is_exposed() -> None:
    assert ReadTimes(last_computed_at_s=5.0).exposed_transfer_s == 0
