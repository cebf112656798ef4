"""Snapshot of the workers, as a policy sees them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from baton.router.request_context import NO_HINTS, RoutingHints

WINDOW = 512  # requests after which the weight of one falls to 1/e
FAIRNESS_SLACK = 4.0  # requests by which workers may differ without a meaning


@dataclass(frozen=True, slots=True)
class RecentRequests:
    """A decayed count, as it stood at a turn of the router."""

    count: float = 0.0
    turn: int = 0

    def with_one(self, turn: int) -> "RecentRequests":
        """Return the count with one more request at this turn."""
        return RecentRequests(self.at(turn) + 1, turn)

    def at(self, turn: int) -> float:
        """Return the count at a later turn."""
        return self.count * (1 - 1 / WINDOW) ** max(0, turn - self.turn)


NO_REQUESTS = RecentRequests()


def fair_count(turn: int, num_workers: int) -> float:
    """Return the count of each worker at a turn if all had got the same."""
    return WINDOW * (1 - (1 - 1 / WINDOW) ** turn) / max(1, num_workers)


def excess(recent: RecentRequests, turn: int, fair: float) -> float:
    """Return by what share a worker got more than `fair_count`; at least 0."""
    return max(0.0, (recent.at(turn) + FAIRNESS_SLACK) / (fair + FAIRNESS_SLACK) - 1)


class WorkerRole(Enum):
    """Role of a worker; `both`: colocated prefill and decode."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """One worker that takes requests. Counts include what was just sent to it. A rate of 0 is unknown."""

    worker_id: str
    incarnation: str
    address: str  # host:port
    role: WorkerRole
    fingerprint: str  # KV moves only between equal ones
    block_size: int  # tokens
    num_requests: int  # running and waiting
    num_queued_tokens: int  # to compute before all requests there decode
    num_free_blocks: int
    max_model_len: int
    num_blocks: int = 0  # 0: unknown
    max_num_seqs: int = 0  # in the batch; 0: unknown
    max_num_batched_tokens: int = 0  # token budget of a step; 0: unknown
    block_bytes: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0  # a step with one sequence
    decode_sequence_s: float = 0.0  # for each further one
    read_bytes_per_s: float = 0.0  # of KV from peers
    num_prefills: int = 0  # prompts computed for other workers, which will not decode here
    prompt_share: float = 0.0  # recent share of its time spent on prompts
    num_tokens_done: int = 0  # prompt and output tokens since it started
    recent: RecentRequests = NO_REQUESTS  # requests that this router sent there


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Workers that take requests."""

    workers: tuple[WorkerSnapshot, ...]
    turn: int = 0  # number of requests routed so far
    seed: int = 0  # differs between routers, so that they break ties differently

    def decoders(self) -> list[WorkerSnapshot]:
        """Return the workers that decode."""
        return [worker for worker in self.workers if worker.role is not WorkerRole.PREFILL]

    def without(self, excluded: frozenset[str], fingerprint: str = "") -> "ClusterSnapshot":
        """Return the snapshot without these incarnations and, if `fingerprint` is given, without other fingerprints."""
        kept = (worker for worker in self.workers if worker.incarnation not in excluded)
        return ClusterSnapshot(
            tuple(worker for worker in kept if fingerprint in ("", worker.fingerprint)), self.turn, self.seed
        )


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """A request as a policy sees it."""

    num_tokens: int  # prompt, plus the output so far of a request that moves
    cached_tokens: Mapping[str, int] = field(default_factory=dict)  # by incarnation; missing: 0
    num_final_tokens: int = 0  # prompt plus the maximum output; 0: unknown
    hints: RoutingHints = NO_HINTS
    reuse_share: float = 0.5  # share of recent prompts' tokens that some worker had cached
    mean_output_tokens: float = 256.0  # of recent requests
    typical_output_tokens: tuple[float, ...] = ()  # equally likely lengths; empty: all equal the mean

    @property
    def expected_output_tokens(self) -> float:
        """Expected length of its output: the mean, but no more than its limit; at least 1."""
        num_allowed = self.num_final_tokens - self.num_tokens
        return max(1.0, min(self.mean_output_tokens, num_allowed)) if num_allowed > 0 else self.mean_output_tokens

    def missing_tokens(self, worker: WorkerSnapshot) -> int:
        """Return the tokens whose KV the worker lacks. The last one is always computed, for its logits."""
        return self.num_tokens - min(self.cached_tokens.get(worker.incarnation, 0), self.num_tokens - 1)


class PlanKind(Enum):
    """How the decode worker gets the KV of a prompt."""

    LOCAL = "local"  # computed there
    LOCAL_WITH_SOURCE = "local_with_source"  # the same, and the decode worker pulls a prefix from another worker
    REMOTE = "remote"  # computed by a prefill worker
    REMOTE_WITH_SOURCE = "remote_with_source"  # the same, and the prefill worker pulls a prefix from a third worker


@dataclass(frozen=True, slots=True)
class Plan:
    """Workers for a request, and the reason for them."""

    decode: WorkerSnapshot
    prefill: WorkerSnapshot | None  # None: the decode worker itself
    prefix_source: WorkerSnapshot | None  # has more of the prefix than the worker that computes the prompt
    reason: object  # formatted only when it is read
    prefill_fallbacks: tuple[WorkerSnapshot, ...] = ()  # tried in order if the prefill worker fails

    @property
    def kind(self) -> PlanKind:
        """How the decode worker gets the KV of the prompt."""
        if self.prefill is None:
            return PlanKind.LOCAL if self.prefix_source is None else PlanKind.LOCAL_WITH_SOURCE
        return PlanKind.REMOTE if self.prefix_source is None else PlanKind.REMOTE_WITH_SOURCE
