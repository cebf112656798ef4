"""Replicas that each pool needs for a load, its backlog and its measurements."""

import math
from dataclasses import replace

import pytest

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.need import decode_need, full_pool_rate, prefill_need
from baton.deployment.autoscaling.prediction.pools_model import PoolsModel
from baton.deployment.autoscaling.snapshot import ReplicaLatency
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, decode, pool, prefill, snapshot, traffic


def test_a_need_is_at_most_the_maximum_size() -> None:
    """However slow the replicas are: predictions iterate up to that number."""
    slow = snapshot(prefill=prefill(pool(), tokens_per_s=0.01, queued_tokens=1e6))
    found = prefill_need(slow, SETTINGS, 1.0, 15)
    assert (found.least, found.sure, found.keep, found.queue) == (15, 15, 15, 15)
    stuck = snapshot(decode=decode(pool(), step_s=1e3, num_waiting=1000))
    found = decode_need(stuck, SETTINGS, 1.0, 15, 0.0)
    assert (found.least, found.sure, found.queue) == (15, 15, 15)


def test_a_full_pools_measured_throughput_replaces_the_models() -> None:
    """Three replicas for a minute, one for three quarters of it, of which half is warm-up, and one that is new."""
    ready_for_s = (1000.0, 90.0, 600.0, 45.0, 10.0)
    times = tuple(ReplicaLatency(each, 100, 0.03) for each in ready_for_s)
    full = decode(pool(5, latencies=times), num_running=200, num_waiting=40)
    load = traffic(10.0, num_ended=390)
    assert full_pool_rate(load, full, SETTINGS) == pytest.approx(390 / (3 * 60 + 15))
    assert full_pool_rate(load, replace(full, num_waiting=9), SETTINGS) == math.inf  # for less than a second
    assert full_pool_rate(replace(load, num_ended=0), full, SETTINGS) == math.inf
    assert full_pool_rate(load, decode(pool(5, latencies=times[4:]), num_waiting=40), SETTINGS) == math.inf
    expected = decode_need(snapshot(load=replace(load, num_ended=0), decode=full), SETTINGS, 1.0, 50, 0.0)
    assert expected.least < 5
    assert decode_need(snapshot(load=load, decode=full), SETTINGS, 1.0, 50, 0.0).least > 5


def test_prefill_is_planned_for_its_share_of_the_prompts() -> None:
    """Of 80 requests a second decode workers compute three of four prompts, so 20 are left."""
    mixed, alone = traffic(80.0), traffic(20.0)
    factors = ByPool(1.0, 1.0)
    needs = [
        prefill_need(seen, SETTINGS, 1.0, 100, PoolsModel.of(seen, SETTINGS, factors, share).prefill)
        for seen, share in ((snapshot(load=mixed), 0.75), (snapshot(load=alone), 0.0))
    ]
    assert needs[0].least == needs[1].least
    assert needs[0].sure == needs[1].sure
    assert needs[0].model is not None
    assert needs[1].model is not None
    assert needs[0].model.rate(8) == pytest.approx(4 * needs[1].model.rate(8), rel=1e-3)
    assert prefill_need(snapshot(load=mixed), SETTINGS, 1.0, 100).least > 3 * needs[0].least


def test_a_part_of_the_load_is_as_certain_as_the_whole() -> None:
    """The prompts that decode workers compute count for the mean, too."""
    seen, factors = snapshot(load=traffic(8.0)), ByPool(1.0, 1.0)
    models = [PoolsModel.of(seen, SETTINGS, factors, share).prefill for share in (0.0, 0.6, 0.95)]
    chances = [prefill_need(seen, SETTINGS, 1.0, 100, model).chance for model in models]
    assert chances == [pytest.approx(2 * math.sqrt(2 / 480))] * 3
