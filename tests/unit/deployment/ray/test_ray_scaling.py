"""The policy in Ray Serve's controller."""

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.decision import Decision, PoolDecision
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.ray.pools_observer import own_reports
from baton.deployment.ray.scaling import PoolsPolicy, affordable, logger, plan_report, within
from baton.membership.registry.factory import open_registry
from baton.membership.registry.plan_report import PoolPlan, decode_plan, encode_plan
from baton.membership.registry.router_report import encode_report
from tests.redis_server import redis_server
from tests.unit.deployment.ray.scaling_rig import DEADLINE_S, SETTINGS, ScriptedObserver, pools, replace_name
from tests.unit.deployment.serve_contexts import FakeConfig, FakeContext, FakeKey, by_name, contexts
from tests.unit.membership.registry.registry_members import reporting
from tests.unit.membership.registry.router_reports import router_report, worker_report


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.LogCaptureFixture]:
    """Capture Baton's lines in Serve's log; Serve's logger, once it is set up, does not propagate."""
    monkeypatch.setattr(logger, "propagate", False)
    with caplog.at_level(logging.INFO, logger=logger.name):
        logger.addHandler(caplog.handler)
        yield caplog
        logger.removeHandler(caplog.handler)


def test_sizes_follow_the_load_and_the_log_has_the_reason(
    policy: PoolsPolicy, observer: ScriptedObserver, caplog: pytest.LogCaptureFixture
) -> None:
    observer.see(pools(rate=1.0))
    assert by_name(policy(contexts())[0]) == {"prefill": 1, "decode": 1}
    observer.see(pools(rate=5.0))
    targets, state = policy(contexts())
    assert by_name(targets)["prefill"] > 1
    assert by_name(targets)["decode"] == 1
    assert state == {}
    assert "prefill: 1 -> " in caplog.messages[-1]
    assert policy(contexts())[0] == targets  # Serve calls ten times between two observations
    num_lines = len(caplog.messages)
    observer.see(pools(rate=5.0))
    policy({**contexts(), FakeKey("prefill"): FakeContext(by_name(targets)["prefill"])})
    assert len(caplog.messages) == num_lines


def test_a_line_explains_the_plan_once_in_a_while(
    policy: PoolsPolicy,
    observer: ScriptedObserver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for interval_s, num_lines in ((60.0, 0), (0.0, 2)):
        replace_name(monkeypatch, "EXPLAIN_S", interval_s)
        caplog.clear()
        for _ in range(2):
            observer.see(pools(rate=1.0))
            policy(contexts())
        assert sum(line.startswith("measured: 1 requests/s, ") for line in caplog.messages) == num_lines


def test_wanted_replicas_that_are_missing_count_as_starting(policy: PoolsPolicy, observer: ScriptedObserver) -> None:
    for _ in range(3):  # they are not requested again while they start
        observer.see(pools(num_decode=2))
        assert by_name(policy(contexts(decode=4))[0])["decode"] <= 4
    assert policy._state is not None
    assert policy._state.grants.sizes.decode <= 4


def test_an_old_observation_is_ignored(
    policy: PoolsPolicy, observer: ScriptedObserver, caplog: pytest.LogCaptureFixture
) -> None:
    assert policy(contexts()) == ({}, {})
    observer.see(pools(), age_s=60.0)
    observer.error = "Redis is lost"
    for _ in range(100):
        assert policy(contexts()) == ({}, {})
    assert caplog.messages == ["pool sizes unchanged: no router has reported", "pool sizes unchanged: Redis is lost"]
    observer.see(pools())
    assert by_name(policy(contexts())[0]) == {"prefill": 1, "decode": 1}


def test_sizes_stay_after_any_error(
    policy: PoolsPolicy, observer: ScriptedObserver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer.see(pools())
    assert policy({FakeKey("prefill"): FakeContext()}) == ({}, {})
    assert "decode need an autoscaling_config" in caplog.messages[-1]
    observer.see(pools(), ScalingSettings(budget_gpus=1))
    assert policy(contexts()) == ({}, {})
    assert "the smallest pools need 2" in caplog.messages[-1]
    slow = contexts()
    slow[FakeKey("decode")].config.upscale_delay_s = 30.0
    observer.see(pools())
    assert by_name(policy(slow)[0]) == {"prefill": 1, "decode": 1}
    assert caplog.messages[-2].startswith("decode: set upscale_delay_s and downscale_delay_s to 0")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    replace_name(monkeypatch, "plan_pools", fail)
    observer.see(pools())
    for _ in range(3):  # ten times a second
        assert policy(contexts()) == ({}, {})
    failures = [each for each in caplog.records if "planning failed" in each.message]
    assert [each.message for each in failures] == ["pool sizes unchanged: planning failed with ZeroDivisionError"]
    assert failures[0].exc_info is not None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FakeConfig(downscale_delay_s=1.0), "decode: set upscale_delay_s and downscale_delay_s to 0"),
        (FakeConfig(downscale_to_zero_delay_s=9.0), "decode: set upscale_delay_s and downscale_delay_s to 0"),
        (FakeConfig(upscaling_factor=2.0), "decode: remove upscaling_factor and downscaling_factor"),
        (FakeConfig(downscaling_factor=0.5), "decode: remove upscaling_factor and downscaling_factor"),
    ],
)
def test_serves_settings_that_conflict_with_the_plan_are_logged(
    policy: PoolsPolicy, observer: ScriptedObserver, caplog: pytest.LogCaptureFixture, config: FakeConfig, expected: str
) -> None:
    observer.see(pools())
    assert by_name(policy({**contexts(), FakeKey("decode"): FakeContext(config=config)})[0]) == {
        "prefill": 1,
        "decode": 1,
    }
    assert [line.startswith(expected) for line in caplog.messages].count(True) == 1
    assert len(caplog.messages) == 2  # and the plan


def test_deployments_that_are_no_pools_are_not_sized(
    policy: PoolsPolicy, observer: ScriptedObserver, caplog: pytest.LogCaptureFixture
) -> None:
    observer.see(pools())
    assert by_name(policy({**contexts(), FakeKey("router"): FakeContext()})[0]) == {"prefill": 1, "decode": 1}
    assert caplog.messages[0] == "router: is not autoscaled, only prefill and decode are; set num_replicas"


def test_each_observation_is_planned_once(
    policy: PoolsPolicy, observer: ScriptedObserver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve calls ten times a second; counting an observation ten times would end the planner's delays too soon."""
    num_plans = 0

    def plan(*arguments: Any) -> Any:
        nonlocal num_plans
        num_plans += 1
        return plan_pools(*arguments)

    replace_name(monkeypatch, "plan_pools", plan)
    observer.see(pools())
    assert [by_name(policy(contexts())[0]) for _ in range(10)] == [{"prefill": 1, "decode": 1}] * 10
    assert num_plans == 1
    observer.see(pools())
    policy(contexts())
    assert num_plans == 2


def test_invalid_options_are_logged_and_raise_nothing(caplog: pytest.LogCaptureFixture) -> None:
    policy = PoolsPolicy(registry="redis://nowhere", budget=8)
    assert policy(contexts()) == ({}, {})
    assert caplog.messages == [
        "pool sizes unchanged: autoscaling_policy.policy_kwargs: budget: unknown option; known are "
        + ", ".join(ScalingSettings.__dataclass_fields__)
    ]


def test_the_deployments_bounds_apply() -> None:
    settings = ScalingSettings(budget_gpus=8, prefill=PoolLimits(gpus_per_replica=2, max_replicas=3))
    bounded = within(settings, ByPool(FakeContext(), FakeContext(1, 2, 5)))  # type: ignore[arg-type]  # fakes
    assert bounded.prefill == PoolLimits(gpus_per_replica=2, min_replicas=1, max_replicas=3)
    assert bounded.decode == PoolLimits(min_replicas=2, max_replicas=5)
    empty = within(settings, ByPool(FakeContext(0, 0), FakeContext(0, 0)))  # type: ignore[arg-type]
    assert (empty.prefill.min_replicas, empty.decode.min_replicas) == (1, 1)


def test_colocated_workers_belong_to_no_pool(
    policy: PoolsPolicy, observer: ScriptedObserver, caplog: pytest.LogCaptureFixture
) -> None:
    observer.see(router_report(worker_report("prefill-0", "prefill"), worker_report("both-0", "both")))
    assert policy(contexts()) == ({}, {})
    assert caplog.messages == ["pool sizes unchanged: there are colocated workers, which belong to neither pool"]


def test_a_cluster_with_too_few_gpus_leaves_the_smallest_pools(observer: ScriptedObserver) -> None:
    pods = {"labels": {"app": "a"}, "gpus_per_pod": 1}
    policy = PoolsPolicy(registry="redis://nowhere", budget_gpus=8, kubernetes={"prefill": pods, "decode": pods})
    observer.see(pools(rate=5.0), replace(SETTINGS, budget_gpus=1))
    assert by_name(policy(contexts())[0]) == {"prefill": 1, "decode": 1}


def test_the_smallest_pools_are_kept_although_the_cluster_has_no_room() -> None:
    settings = ScalingSettings(
        budget_gpus=3, prefill=PoolLimits(gpus_per_replica=2, min_replicas=2), decode=PoolLimits(min_replicas=5)
    )
    assert affordable(settings).budget_gpus == 9
    affordable(settings).check()
    assert affordable(replace(settings, budget_gpus=20)).budget_gpus == 20


def test_a_replaced_policy_stops_observing(observer: ScriptedObserver) -> None:
    policy = PoolsPolicy(registry="redis://nowhere", budget_gpus=8)
    assert not observer.is_stopped
    del policy
    gc.collect()
    assert observer.is_stopped


def test_reports_of_other_models_are_ignored() -> None:
    ours, theirs = (router_report(model=name) for name in ("a", "b"))
    assert [each.model for each in own_reports([ours, theirs], "a")] == ["a"]
    assert [each.model for each in own_reports([theirs], None)] == ["b"]
    with pytest.raises(ValueError, match=r"routers report several models \(a, b\); set `model`"):
        own_reports([ours, theirs], None)


async def sizes(policy: PoolsPolicy) -> dict[str, int]:
    """Return the policy's sizes once it has any."""
    async with asyncio.timeout(DEADLINE_S):
        while not (targets := policy(contexts())[0]):
            await asyncio.sleep(0.02)
        return by_name(targets)


async def test_invalid_reports_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with redis_server(tmp_path) as server, Redis.from_url(server.url) as redis:
        endless = encode_report(pools()).replace('"time_s":', '"time_s":NaN,"before":')
        huge = encode_report(pools()).replace('"num_running":', '"num_running":1e300,"before":')
        negative = encode_report(pools()).replace('"window_s":', '"window_s":-1,"before":')
        texts = {"bytes": b"\xff", "deep": b"[" * 10_000, "endless": endless, "huge": huge, "negative": negative}
        num_reports = len(texts) - 1  # bytes that are no UTF-8 are left out earlier
        for name, text in texts.items():
            await redis.set(f"baton:{{default}}:router:{name}", text)
            await redis.sadd("baton:{default}:routers", name)
        registry = open_registry(server.url)
        policy = PoolsPolicy(registry=server.url, budget_gpus=8)
        async with reporting(registry, "router-1", lambda: encode_report(pools())):
            assert await sizes(policy) == {"prefill": 1, "decode": 1}
            observer = policy._observer
            assert observer is not None
            seen = observer.latest
            async with asyncio.timeout(DEADLINE_S):
                while observer.latest is seen:  # another read logs nothing
                    await asyncio.sleep(0.02)
            assert observer.num_invalid == num_reports
        assert caplog.text.count(f"ignoring {num_reports} invalid router reports in the registry") == 1
        await registry.close()


async def test_from_a_real_registry_to_sizes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with redis_server(tmp_path) as server:
        registry = open_registry(server.url)
        policy = PoolsPolicy(registry=server.url, budget_gpus=8)

        begun_s = time.perf_counter()
        assert policy(contexts()) == ({}, {})
        assert time.perf_counter() - begun_s < 0.5  # it never blocks
        async with reporting(registry, "router-1", lambda: encode_report(pools())):
            assert await sizes(policy) == {"prefill": 1, "decode": 1}
            await server.kill()
            async with asyncio.timeout(DEADLINE_S):
                while not any("cannot observe the pools" in line for line in caplog.messages):
                    await asyncio.sleep(0.02)
            assert await sizes(policy) == {"prefill": 1, "decode": 1}  # of the last observation
            await server.start()
            seen = policy._observer.latest
            async with asyncio.timeout(DEADLINE_S):
                while policy._observer.latest is seen:
                    await asyncio.sleep(0.02)
            assert await sizes(policy) == {"prefill": 1, "decode": 1}
        await registry.close()
        thread = policy._observer._thread
        del policy
        gc.collect()
        await asyncio.to_thread(thread.join, DEADLINE_S)
        assert not thread.is_alive()


def test_the_plan_is_published_as_routers_show_it() -> None:
    decision = Decision(
        PoolDecision(target=3, wanted=4, need=2, factor=1.5, reason="stays 3"),
        PoolDecision(target=5, wanted=5, need=5, factor=0.5, reason="4 -> 5"),
        believed_gpus=8,
    )
    report = plan_report("baton", "llama", decision)
    assert (report.application, report.model) == ("baton", "llama")
    assert report.prefill == PoolPlan(target=3, needed=2, factor=1.5)
    assert report.decode == PoolPlan(target=5, needed=5, factor=0.5)
    assert report.reason == "prefill: stays 3; decode: 4 -> 5"
    assert decode_plan(encode_plan(report)) == report
