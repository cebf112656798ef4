"""Snapshot of the workers, as a policy sees them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from baton.router.request_context import NO_HINTS, RoutingHints

WINDOW = 512  # requests of the router: the weight of one falls to 1/e in so many
FAIRNESS_SLACK = 4.0  # requests by which workers differ without its meaning anything


@dataclass(frozen=True, slots=True)
class RecentRequests:
    """A decayed count, as it stood at a turn of the router."""

    count: float = 0.0
    turn: int = 0

    def with_one(self, turn: int) -> "RecentRequests":
        """The same when the worker got one more at this turn."""
        return RecentRequests(self.at(turn) + 1, turn)

    def at(self, turn: int) -> float:
        """The count at a later turn."""
        return self.count * (1 - 1 / WINDOW) ** max(0, turn - self.turn)


NO_REQUESTS = RecentRequests()


def fair_count(turn: int, num_workers: int) -> float:
    """What each would have at a turn if all had got the same."""
    return WINDOW * (1 - (1 - 1 / WINDOW) ** turn) / max(1, num_workers)


def excess(recent: RecentRequests, turn: int, fair: float) -> float:
    """By what share a worker got more than the `fair_count`; 0 if it got no more."""
    return max(0.0, (recent.at(turn) + FAIRNESS_SLACK) / (fair + FAIRNESS_SLACK) - 1)


class WorkerRole(Enum):
    """What a worker is for."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSnapshot:
    """One worker that takes requests. What is counted includes what was just sent to it; 0 in a rate: not known."""

    worker_id: str
    incarnation: str
    address: str  # host:port
    role: WorkerRole
    fingerprint: str  # KV goes only between equal ones
    block_size: int  # tokens
    num_requests: int  # running and waiting
    num_queued_tokens: int  # to compute there before all of them are decoding
    num_free_blocks: int
    max_model_len: int
    num_blocks: int = 0  # 0: not known
    max_num_seqs: int = 0  # most sequences in the batch; 0: not known
    max_num_batched_tokens: int = 0  # most tokens of a step; 0: not known
    block_bytes: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_step_s: float = 0.0  # a step with one sequence
    decode_sequence_s: float = 0.0  # that each further one adds
    read_bytes_per_s: float = 0.0  # of KV from peers
    num_prefills: int = 0  # of the requests: prompts for others, which will not decode there
    prompt_share: float = 0.0  # of its time, that it computed prompts lately
    num_tokens_done: int = 0  # prompt and output tokens since its start
    recent: RecentRequests = NO_REQUESTS  # what the router sent there


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The workers that take requests."""

    workers: tuple[WorkerSnapshot, ...]
    turn: int = 0  # counts the requests routed so far
    seed: int = 0  # the router's own, so that several routers break ties differently

    def decoders(self) -> list[WorkerSnapshot]:
        """Workers that decode."""
        return [worker for worker in self.workers if worker.role is not WorkerRole.PREFILL]

    def without(self, excluded: frozenset[str], fingerprint: str = "") -> "ClusterSnapshot":
        """The same without the workers of these incarnations, and, if one is given, those of other fingerprints."""
        kept = (worker for worker in self.workers if worker.incarnation not in excluded)
        return ClusterSnapshot(
            tuple(worker for worker in kept if fingerprint in ("", worker.fingerprint)), self.turn, self.seed
        )


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What a policy knows of a request."""

    num_tokens: int  # prompt, and output so far where it is sent again
    cached_tokens: Mapping[str, int] = field(default_factory=dict)  # by incarnation; absent: 0
    num_final_tokens: int = 0  # prompt plus the most output; 0: not known
    hints: RoutingHints = NO_HINTS
    reuse_share: float = 0.5  # of the last prompts' tokens, what some worker had cached
    mean_output_tokens: float = 256.0  # of the last answers
    typical_output_tokens: tuple[float, ...] = ()  # of them, as likely as each other; none: all are as long as the mean

    @property
    def expected_output_tokens(self) -> float:
        """Of its own answer: the mean, or the most that it may have if that is less; at least 1."""
        num_allowed = self.num_final_tokens - self.num_tokens
        return max(1.0, min(self.mean_output_tokens, num_allowed)) if num_allowed > 0 else self.mean_output_tokens

    def missing_tokens(self, worker: WorkerSnapshot) -> int:
        """Tokens whose KV the worker lacks; the last one always has to be computed for its logits."""
        return self.num_tokens - min(self.cached_tokens.get(worker.incarnation, 0), self.num_tokens - 1)


class PlanKind(Enum):
    """How a prompt's KV comes to the decode worker."""

    LOCAL = "local"  # computed there
    LOCAL_WITH_SOURCE = "local_with_source"  # the same, and the decode worker pulls a prefix from another worker
    REMOTE = "remote"  # computed by a prefill worker
    REMOTE_WITH_SOURCE = "remote_with_source"  # the same, and the prefill worker pulls a prefix from a third worker


@dataclass(frozen=True, slots=True)
class Plan:
    """Who does what for a request, and why."""

    decode: WorkerSnapshot
    prefill: WorkerSnapshot | None  # None: the decode worker itself
    prefix_source: WorkerSnapshot | None  # has more of the prefix than who computes the prompt
    reason: object  # as text; seldom read, and so worded only then
    prefill_fallbacks: tuple[WorkerSnapshot, ...] = ()  # asked in turn if the prefill worker fails

    @property
    def kind(self) -> PlanKind:
        """How the prompt's KV comes to the decode worker."""
        if self.prefill is None:
            return PlanKind.LOCAL if self.prefix_source is None else PlanKind.LOCAL_WITH_SOURCE
        return PlanKind.REMOTE if self.prefix_source is None else PlanKind.REMOTE_WITH_SOURCE
