"""Pins and saved prefill in a worker's metrics and load reports."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton.engine.kv.prefix_pins import PinFigures
from baton.engine.outputs import EngineStats
from baton.worker.metrics import WorkerMetrics
from baton.worker.reporting import TierCounters, WorkerCounters, load_report
from baton.worker.saved_prefill import SavedPrefill
from tests.unit.worker.test_watch import SteppedHost


class PinningHost(SteppedHost):
    """A host with pins, whose cache has saved prefill."""

    ranks = SimpleNamespace(choices={})

    async def stats(self) -> EngineStats:
        stats = replace(await super().stats(), pins=PinFigures(2, 30, 1))
        return replace(stats, num_cached_tokens=400, num_looked_up_tokens=500, prefill_tokens_per_s=100.0)

    async def expert_figures(self) -> None:
        return None


async def test_a_load_report_has_them() -> None:
    report = load_report(await PinningHost().stats(), WorkerCounters())
    assert (report.num_pins, report.num_pinned_blocks, report.num_dropped_pins) == (2, 30, 1)
    assert (report.num_cached_tokens, report.num_looked_up_tokens) == (400, 500)


async def test_metrics_have_them_by_tier() -> None:
    host: Any = PinningHost()
    counters = WorkerCounters(tiers={"disk": TierCounters(fetched_blocks=50)})
    metrics = WorkerMetrics(host, counters, "decode-0", "model")

    async def samples() -> dict[tuple[str, str | None], float]:
        families = await asyncio.to_thread(lambda: list(metrics.collect()))
        return {
            (sample.name, sample.labels.get("tier")): sample.value for family in families for sample in family.samples
        }

    found = await samples()
    assert found["baton:kv_pins", None] == 2
    assert found["baton:kv_pinned_blocks", None] == 30
    assert found["baton:kv_pinned_bytes", None] == 30_000
    assert found["baton:kv_dropped_pins_total", None] == 1
    assert found["baton:kv_saved_prefill_seconds_total", "kv_cache"] == 4.0
    assert found["baton:kv_saved_prefill_seconds_total", "disk"] == 2.0
    assert await samples() == found


def test_saved_seconds_follow_the_rate_at_the_time() -> None:
    saved = SavedPrefill()
    assert saved.note({"kv_cache": 100}, 0.0) == {"kv_cache": 0.0}  # the rate is not known yet
    assert saved.note({"kv_cache": 200}, 100.0) == {"kv_cache": 2.0}
    assert saved.note({"kv_cache": 300, "host": 50}, 50.0) == {"kv_cache": 4.0, "host": 1.0}
