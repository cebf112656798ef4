"""Reports of routers for tests."""

from typing import Any

from baton.membership.registry.router_report import RouterReport, SampleSums, TrafficReport, WorkerReport


def sums(mean: float, num: int, cv2: float = 0.0) -> SampleSums:
    """Return the sums of `num` samples with this mean and squared coefficient of variation."""
    return SampleSums(num, num * mean, num * mean * mean * (1 + cv2))


def traffic_report(num_requests: int = 600, **changes: Any) -> TrafficReport:
    """Return a minute of regular requests: prompts of 1,000 tokens, half of them cached, and outputs of 100."""
    values = {
        "window_s": 60.0,
        "num_requests": num_requests,
        "gaps_s": sums(60.0 / max(1, num_requests), num_requests),
        "prompt_tokens": sums(1000.0, num_requests),
        "uncached_tokens": sums(500.0, num_requests),
        "output_tokens": sums(100.0, num_requests),
    }
    return TrafficReport(**{**values, **changes})


def worker_report(worker_id: str = "decode-0", role: str = "decode", **changes: Any) -> WorkerReport:
    """Return the report of an idle worker that has been ready for a while."""
    values = {
        "worker_id": worker_id, "incarnation": f"{worker_id}/1", "role": role, "draining": False, "ready_for_s": 100.0,
        "num_running": 0, "num_waiting": 0, "num_queued_tokens": 0, "num_blocks": 1000, "num_free_blocks": 1000,
        "block_size": 16, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "prefill_tokens_per_s": 10_000.0,
        "decode_step_s": 0.01, "decode_sequence_s": 0.001,
    }  # fmt: skip
    return WorkerReport(**{**values, **changes})


def router_report(*workers: WorkerReport, router_id: str = "router-1", **changes: Any) -> RouterReport:
    """Return the report of a router that reaches these workers."""
    values = {"model": "m", "time_s": 1000.0, "traffic": traffic_report(), "workers": workers}
    return RouterReport(router_id=router_id, **{**values, **changes})
