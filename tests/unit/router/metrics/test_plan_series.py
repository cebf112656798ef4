"""The autoscaler's plan as a router shows it."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from baton.membership.registry.factory import open_registry
from baton.membership.registry.memory import MemoryRegistry
from baton.membership.registry.plan_report import PlanReport, PoolPlan, encode_plan
from baton.router.metrics.plan_series import PlanSeries
from tests.redis_server import redis_server
from tests.unit.router.rigs.running_router import RunningRouter, running_router

PLAN = PlanReport(
    application="a",
    model="bundled_model",
    time_s=10.0,
    prefill=PoolPlan(target=3, needed=2, factor=1.5),
    decode=PoolPlan(target=4, needed=5, factor=0.5),
    reason="decode needs 5",
)


async def test_the_latest_plan_of_the_model_is_shown(tmp_path: Path) -> None:
    others = replace(PLAN, model="other"), replace(PLAN, time_s=9.0)
    texts = [*map(encode_plan, (PLAN, *others)), "no plan"]
    async with redis_server(tmp_path) as server, running_router(registry=server.url, workers=()) as router:
        assert (await shown_plan(router)) is None
        assert "baton:autoscaler" not in (await router.http.get("/metrics")).text
        registry = open_registry(server.url)
        keeping = [
            asyncio.create_task(registry.plans.keep(str(number), partial(str, text)))
            for number, text in enumerate(texts)
        ]
        try:
            async with asyncio.timeout(30):
                while (shown := await shown_plan(router)) is None or shown["time_s"] < 10:
                    await asyncio.sleep(0.02)
            assert (shown["reason"], shown["prefill"]) == ("decode needs 5", {"target": 3, "needed": 2, "factor": 1.5})
            page = (await router.http.get("/metrics")).text
            for name, pool, value in (("target", "prefill", 3.0), ("needed", "decode", 5.0), ("factor", "decode", 0.5)):
                assert f'baton:autoscaler_{name}{{model_name="bundled_model",pool="{pool}"}} {value}' in page
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await registry.close()


async def shown_plan(router: RunningRouter) -> dict[str, Any] | None:
    content = (await router.http.get("/workers")).json()
    plan: dict[str, Any] | None = content["router"]["models"][0]["autoscaler"]
    return plan


def test_decisions_are_the_plans_with_new_targets() -> None:
    series = PlanSeries(MemoryRegistry(), "bundled_model")
    grown = replace(PLAN, time_s=12.0, decode=replace(PLAN.decode, target=5), reason="decode grows")
    for plan in (PLAN, replace(PLAN, time_s=11.0, reason="as before"), None, grown, None):
        series._note(plan)
    assert series.latest is None
    assert list(series.decisions) == [PLAN, grown]


@pytest.mark.slow
async def test_a_plan_that_is_not_renewed_is_forgotten() -> None:
    registry = MemoryRegistry()
    series = PlanSeries(registry, "bundled_model")
    following = asyncio.create_task(series.run())
    keeping = asyncio.create_task(registry.plans.keep("a", lambda: encode_plan(PLAN)))
    try:
        async with asyncio.timeout(30):
            while series.latest is None:
                await asyncio.sleep(0.02)
            keeping.cancel()
            while series.latest is not None:
                await asyncio.sleep(0.02)
        assert list(series.collect()) == []
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
