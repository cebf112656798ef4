"""The policy, transferred to the controller and called there by Ray Serve's own code."""

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton.deployment.ray.scaling import POOLS
from baton.deployment.ray.serve_context import serve_conflicts
from baton.membership.registry.factory import open_registry
from baton.membership.registry.router_report import encode_report
from tests.redis_server import redis_server
from tests.unit.deployment.ray.scaling_rig import pools
from tests.unit.membership.registry.registry_members import reporting

pytest.importorskip("ray.serve")

from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve._private.common import DeploymentID
from ray.serve.autoscaling_policy import _apply_app_level_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

DEADLINE_S = 20.0
AT_ONCE = {"upscale_delay_s": 0.0, "downscale_delay_s": 0.0}


def in_controller(**options: object) -> Callable[..., Any]:
    """Return a policy with these options, pickled and unpickled, in Serve's wrapper."""
    named: dict[str, Any] = {"policy_function": "baton.deployment.ray.scaling:PoolsPolicy", "policy_kwargs": options}
    pickled = AutoscalingPolicy(**named).get_serialized_policy_def()
    return _apply_app_level_autoscaling_config(
        _resolve_policy_callable(AutoscalingPolicy(**named, _serialized_policy_def=pickled))
    )


def context(name: str, **delays: Any) -> tuple[DeploymentID, AutoscalingContext]:
    """Return the context of a deployment with one replica."""
    key = DeploymentID(name=name, app_name="default")
    return key, AutoscalingContext(
        deployment_id=key, deployment_name=name, app_name="default", current_num_replicas=1, target_num_replicas=1,
        running_replicas=[], total_num_requests=0.0, total_queued_requests=0.0, aggregated_metrics={}, raw_metrics={},
        capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=4, policy_state={}, last_scale_up_time=None,
        last_scale_down_time=None, current_time=None,
        config=AutoscalingConfig(min_replicas=1, max_replicas=4, **delays),
    )  # fmt: skip


async def decided(policy: Callable[..., Any], **delays: float) -> dict[str, int]:
    """Return the first decision."""
    contexts = dict(context(name, **delays) for name in ("prefill", "decode", "router"))
    async with asyncio.timeout(DEADLINE_S):
        while not (targets := policy(contexts)[0]):
            await asyncio.sleep(0.02)
    return {key.name: size for key, size in targets.items()}


async def test_serve_receives_the_planned_sizes(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server:
        registry = open_registry(server.url)
        async with reporting(registry, "router-1", lambda: encode_report(pools(rate=5.0))):
            policy = in_controller(registry=server.url, budget_gpus=8, **AT_ONCE)
            thread = policy.__wrapped__._observer._thread  # type: ignore[attr-defined]  # as functools.wraps has it
            sizes = await decided(policy, **AT_ONCE)
            assert (sizes["prefill"] > 1, sizes["decode"], sorted(sizes)) == (True, 1, ["decode", "prefill"])
            assert await decided(policy) == {"prefill": 1, "decode": 1}  # with Serve's own delays in addition
        await registry.close()
        del policy
        gc.collect()
        await asyncio.to_thread(thread.join, DEADLINE_S)
        assert not thread.is_alive()  # a replaced policy stops observing


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (AT_ONCE, []),
        ({}, ["set upscale_delay_s and downscale_delay_s to 0"]),
        ({**AT_ONCE, "downscale_to_zero_delay_s": 9.0}, ["set upscale_delay_s and downscale_delay_s to 0"]),
        ({**AT_ONCE, "upscaling_factor": 0.5}, ["remove upscaling_factor and downscaling_factor"]),
        ({**AT_ONCE, "downscaling_factor": 0.5}, ["remove upscaling_factor and downscaling_factor"]),
    ],
)
def test_serves_settings_that_conflict_with_the_plan_are_found(given: dict[str, Any], expected: list[str]) -> None:
    [decode, router] = context("decode", **given), context("router")
    lines = list(serve_conflicts(dict([decode]), POOLS))
    assert [line.partition(": ")[2].startswith(each) for line, each in zip(lines, expected, strict=True)] == [
        True
    ] * len(expected)
    assert [line.startswith("router: is not autoscaled") for line in serve_conflicts(dict([router]), POOLS)] == [True]


async def test_a_file_is_followed_while_the_policy_lives(tmp_path: Path) -> None:
    """Serve keeps the policy and every replica while its arguments, such as the file's name, stay the same."""
    file = tmp_path / "settings.yaml"
    file.write_text("budget_gpus: 2\nupscale_delay_s: 0\ndownscale_delay_s: 0\n")
    async with redis_server(tmp_path) as server:
        registry = open_registry(server.url)
        async with reporting(registry, "router-1", lambda: encode_report(pools(rate=5.0))):
            policy = in_controller(registry=server.url, settings_file=str(file))
            thread = policy.__wrapped__._observer._thread  # type: ignore[attr-defined]  # as functools.wraps has it
            assert await decided(policy, **AT_ONCE) == {"prefill": 1, "decode": 1}
            file.write_text("budget_gpus: 8\nupscale_delay_s: 0\ndownscale_delay_s: 0\n")
            async with asyncio.timeout(DEADLINE_S):
                while (await decided(policy, **AT_ONCE))["prefill"] == 1:
                    await asyncio.sleep(0.02)
        await registry.close()
        del policy
        gc.collect()
        await asyncio.to_thread(thread.join, DEADLINE_S)
        assert not thread.is_alive()


def test_invalid_options_leave_serve_running() -> None:
    policy = in_controller(registry="redis://nowhere", budget=8)
    contexts = dict(context(name) for name in ("prefill", "decode"))
    assert policy(contexts)[0] == {}
