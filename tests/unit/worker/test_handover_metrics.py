"""Seconds of handovers in a decode worker's metrics and load reports."""

import asyncio
from typing import Any

from baton.worker.metrics import WorkerMetrics
from baton.worker.reporting import WorkerCounters, load_report
from tests.unit.worker.test_pin_metrics import PinningHost


async def test_metrics_and_reports_have_them() -> None:
    host: Any = PinningHost()
    counters = WorkerCounters()
    counters.handover_times.note("nixl", 512, {"pull": 0.3, "read": 0.1})
    [reported] = load_report(await host.stats(), counters).completed_handovers
    assert (reported.transport, reported.num_bytes, len(reported.phases)) == ("nixl", 512, 2)

    metrics = WorkerMetrics(host, counters, "decode-0", "model")
    families = await asyncio.to_thread(lambda: list(metrics.collect()))
    found = {
        (sample.name, sample.labels.get("transport"), sample.labels.get("phase")): sample.value
        for family in families
        for sample in family.samples
    }
    assert found["baton:handover_seconds_sum", "nixl", "pull"] == 0.3
    assert found["baton:handover_seconds_count", "nixl", "read"] == 1
    assert found["baton:handover_read_bytes_total", "nixl", None] == 512
