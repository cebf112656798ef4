"""Figures of speculative decoding in a worker's metrics and load reports."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton.engine.outputs import EngineStats
from baton.engine.speculation.figures import SpeculationCounters
from baton.worker.metrics import WorkerMetrics
from baton.worker.reporting import WorkerCounters, load_report
from tests.unit.worker.test_watch import SteppedHost

DRAFTS = ((3, 3), (3, 1), (2, 0), (4, 1))  # drafted and accepted tokens


def counted() -> SpeculationCounters:
    counters = SpeculationCounters()
    for num_drafted, num_accepted in DRAFTS:
        counters.note(num_drafted, num_accepted)
    counters.drafting_s = 1.5
    return counters


class DraftingHost(SteppedHost):
    """A host with counted drafts."""

    ranks = SimpleNamespace(choices={})

    async def stats(self) -> EngineStats:
        return replace(await super().stats(), speculation=counted())

    async def expert_figures(self) -> None:
        return None


def test_drafts_are_counted_by_position() -> None:
    counters = counted()
    copy = counters.copy()
    counters.note(1, 1)
    assert (copy.num_drafts, copy.num_draft_tokens, copy.num_accepted_tokens) == (4, 12, 5)
    assert copy.accepted_by_position == [3, 1, 1, 0]
    assert counters.accepted_by_position == [4, 1, 1, 0]


async def test_a_load_report_has_them() -> None:
    report = load_report(await DraftingHost().stats(), WorkerCounters())
    assert (report.num_drafts, report.num_draft_tokens, list(report.accepted_by_position)) == (4, 12, [3, 1, 1, 0])
    assert report.drafting_s == 1.5


async def test_metrics_have_the_names_of_vllm() -> None:
    host: Any = DraftingHost()
    metrics = WorkerMetrics(host, WorkerCounters(), "decode-0", "model")
    families = await asyncio.to_thread(lambda: list(metrics.collect()))
    samples = {
        (sample.name, sample.labels.get("position")): sample.value for family in families for sample in family.samples
    }
    assert samples["baton:spec_decode_num_drafts_total", None] == 4
    assert samples["baton:spec_decode_num_draft_tokens_total", None] == 12
    assert samples["baton:spec_decode_num_accepted_tokens_total", None] == 5
    assert samples["baton:spec_decode_drafting_seconds_total", None] == 1.5
    found = [samples["baton:spec_decode_num_accepted_tokens_per_pos_total", str(place)] for place in range(4)]
    assert found == [3, 1, 1, 0]
