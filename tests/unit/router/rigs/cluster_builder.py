"""Hand-made snapshots for policies."""

from baton.router.policy.cluster import (
    NO_REQUESTS,
    ClusterSnapshot,
    Plan,
    RecentRequests,
    RoutedRequest,
    WorkerRole,
    WorkerSnapshot,
)

PREFILL_TOKENS_PER_S = 10_000.0
STEP_S = 0.010
BLOCK_SIZE = 16


def worker(
    name: str, role: WorkerRole = WorkerRole.DECODE, requests: int = 0, queued: int = 0, free: int = 1000,
    fingerprint: str = "f", max_model_len: int = 8192, max_num_seqs: int = 64, rate: float = PREFILL_TOKENS_PER_S,
    step_s: float = STEP_S, sequence_s: float = 0.0001, read_bytes_per_s: float = 10e9, done: int = 0,
    recent: RecentRequests = NO_REQUESTS,
) -> WorkerSnapshot:  # fmt: skip
    """Return a worker with 10,000 prompt tokens per second. Its incarnation is its name with "/1"."""
    return WorkerSnapshot(
        worker_id=name, incarnation=f"{name}/1", address=f"{name}:1", role=role, fingerprint=fingerprint,
        block_size=BLOCK_SIZE, num_requests=requests, num_queued_tokens=queued, num_free_blocks=free, num_blocks=1000,
        max_model_len=max_model_len, max_num_seqs=max_num_seqs, block_bytes=1 << 20, prefill_tokens_per_s=rate,
        decode_step_s=step_s, decode_sequence_s=sequence_s, read_bytes_per_s=read_bytes_per_s, num_tokens_done=done,
        recent=recent,
    )  # fmt: skip


def prefill(name: str, **options: object) -> WorkerSnapshot:
    """A prefill worker."""
    return worker(name, WorkerRole.PREFILL, **options)  # type: ignore[arg-type]


def both(name: str, **options: object) -> WorkerSnapshot:
    """A colocated worker."""
    return worker(name, WorkerRole.BOTH, **options)  # type: ignore[arg-type]


def cluster(*workers: WorkerSnapshot, turn: int = 0, seed: int = 0) -> ClusterSnapshot:
    """Return a snapshot of these workers."""
    return ClusterSnapshot(workers, turn, seed)


def request(num_tokens: int, **cached: int) -> RoutedRequest:
    """Return a request with this many prompt tokens, and the number that each worker has cached."""
    return RoutedRequest(num_tokens, {f"{name}/1": count for name, count in cached.items()})


def names(plan: Plan) -> tuple[str, str | None, str | None]:
    """Return the names of the decode worker, the prefill worker and the prefix source."""
    prefill_id = plan.prefill.worker_id if plan.prefill else None
    return plan.decode.worker_id, prefill_id, plan.prefix_source.worker_id if plan.prefix_source else None
