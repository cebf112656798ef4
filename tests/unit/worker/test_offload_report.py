"""Weights offload in a worker's load reports."""

from baton.engine.offload.counters import OffloadCounters
from baton.engine.outputs import EngineStats
from baton.worker.reporting import WorkerCounters, load_report


def stats(offload: OffloadCounters) -> EngineStats:
    return EngineStats(*(0,) * 14, offload=offload)


def test_a_worker_reports_what_it_reads_of_its_weights() -> None:
    counters = OffloadCounters(1000, 300, 1.5, 7, 2)
    report = load_report(stats(counters), WorkerCounters()).weights_offload
    assert (report.stored_bytes, report.read_bytes, report.wait_s) == (1000, 300, 1.5)
    assert (report.expert_hits, report.expert_misses) == (7, 2)


def test_a_worker_without_offload_reports_none() -> None:
    assert not load_report(stats(OffloadCounters()), WorkerCounters()).HasField("weights_offload")
