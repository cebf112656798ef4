"""Replicas for what waits already."""

from dataclasses import replace

from baton.deployment.autoscaling.backlog import Backlog
from baton.deployment.autoscaling.decode_model import DecodeModel
from baton.deployment.autoscaling.need import decode_need
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, decode, pool, snapshot, traffic


def test_a_backlog_that_will_be_gone_needs_nothing() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=1.0, done_per_s=1.0)
    assert backlog.left(pool(2), 0.0, 30.0) == 0.0
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 100) == 0


def test_a_backlog_that_stays_is_cleared_in_the_time_of_a_start() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=3.0, done_per_s=1.0)
    assert backlog.left(pool(2), 0.0, 30.0) == 20 + 30
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 100) == 5  # 3 for what comes, 50 / 30 for what is left
    assert backlog.need(pool(2), 0.0, 30.0, 1.0, 4) == 4  # there are no more
    assert backlog.need(pool(2), 0.0, 0.5, 1.0, 100) == 24  # a start that is quick enough saves who waits: within TTFT


def test_replicas_that_are_starting_help_with_the_backlog() -> None:
    backlog = Backlog(queued=20.0, arriving_per_s=3.0, done_per_s=1.0)
    helped = pool(2, starting_since_s=(0.0, 10.0))
    assert backlog.left(helped, 20.0, 30.0) == 20 + 30 - 20 - 10


def test_a_long_wait_is_a_backlog_whatever_the_queue_is_said_to_hold() -> None:
    silent = Backlog(queued=0.0, arriving_per_s=1.5, done_per_s=1.0)
    assert silent.need(pool(2), 0.0, 30.0, 1.0, 100) == 0
    assert silent.need(pool(2, oldest_wait_s=40.0), 0.0, 30.0, 1.0, 100) == 3


def test_replicas_that_get_nothing_done_are_needed_as_many_as_there_may_be() -> None:
    idle = Backlog(queued=0.0, arriving_per_s=0.0, done_per_s=0.0)
    assert idle.need(pool(2), 0.0, 30.0, 1.0, 7) == 0
    for hardly in (0.0, 1e-300):
        assert replace(idle, done_per_s=hardly, queued=1.0).need(pool(2), 0.0, 30.0, 1.0, 7) == 7
    full = decode(pool(1), kv_tokens=2000)  # a prompt that is held for so long before its first token fits nowhere
    assert DecodeModel.of(traffic(1.0), full, SETTINGS, 1.0, 1e15).full_rate(1) == 0.0
    assert decode_need(snapshot(decode=full), SETTINGS, 1.0, 7, 1e15).least == 7
