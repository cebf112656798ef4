"""Replicas needed to clear the queue."""

from dataclasses import replace

from baton.deployment.autoscaling.backlog import Backlog
from baton.deployment.autoscaling.need import decode_need
from baton.deployment.autoscaling.prediction.decode_model import DecodeModel
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, decode, pool, snapshot, traffic


def test_a_backlog_cleared_before_a_start_needs_no_replicas() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=1.0, done_per_s=1.0)
    assert backlog.left(pool(2), 0.0, 30.0) == 0.0
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 100) == 0


def test_a_remaining_backlog_is_cleared_within_the_time_of_a_start() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=3.0, done_per_s=1.0)
    assert backlog.left(pool(2), 0.0, 30.0) == 20 + 30
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 100) == 5  # 3 for arrivals, 50 / 30 for the rest of the queue
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 4) == 4  # the maximum
    assert (
        backlog.need(pool(2), 0.0, 0.5, 1.0, 100) == 24
    )  # after so quick a start, queued requests can still meet the TTFT


def test_starting_replicas_reduce_the_backlog() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=3.0, done_per_s=1.0)
    helped = pool(2, starting_since_s=(0.0, 10.0))
    assert backlog.left(helped, 20.0, 30.0) == 20 + 30 - 20 - 10


def test_a_long_wait_counts_as_a_backlog_whatever_the_reported_queue() -> None:
    silent = Backlog(queued=0.0, arriving_per_s=1.5, done_per_s=1.0)
    assert silent.need(pool(2), 0.0, 30.0, 1.0, 100) == 0
    assert silent.need(pool(2, oldest_wait_s=40.0), 0.0, 30.0, 1.0, 100) == 3


def test_replicas_without_throughput_need_the_maximum() -> None:
    idle = Backlog(queued=0.0, arriving_per_s=0.0, done_per_s=0.0)
    assert idle.need(pool(2), 0.0, 30.0, 1.0, 7) == 0
    for hardly in (0.0, 1e-300):
        assert replace(idle, done_per_s=hardly, queued=1.0).need(pool(2), 0.0, 30.0, 1.0, 7) == 7
    full = decode(pool(1), kv_tokens=2000)  # KV held for so long before the first token fits on no replica
    assert DecodeModel.of(traffic(1.0), full, SETTINGS, 1.0, 1e15).full_rate(1) == 0.0
    assert decode_need(snapshot(decode=full), SETTINGS, 1.0, 7, 1e15).least == 7
