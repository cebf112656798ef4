"""How fast each worker is, as far as one knows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from statistics import median

from baton.router.policy.cluster import ClusterSnapshot, WorkerRole, WorkerSnapshot
from baton.router.policy.recent_requests import excess, fair_count

# Until any worker has reported: an 8B model on one recent GPU, roughly. Only their proportions matter for a choice.
DEFAULT_PREFILL_TOKENS_PER_S = 10_000.0
DEFAULT_DECODE_STEP_S = 0.010
DEFAULT_DECODE_SEQUENCE_S = 0.0001
DEFAULT_READ_BYTES_PER_S = 5e9

Attribute = Callable[[WorkerSnapshot], float]


@dataclass(slots=True)
class WorkerRates:
    """All known, or assumed."""

    prefill_tokens_per_s: float
    decode_step_s: float
    decode_sequence_s: float
    read_bytes_per_s: float


class RateBook:
    """Owns the rates of one snapshot's workers: what they report; else the median of their role, else of all, else the
    defaults.
    """

    def __init__(self, cluster: ClusterSnapshot) -> None:
        self._cluster = cluster
        self._fair_count: float | None = None
        self._assumed: dict[WorkerRole, WorkerRates] = {}
        self._assumed_prefill: dict[WorkerRole, float] = {}

    def of(self, worker: WorkerSnapshot) -> WorkerRates:
        """The worker's rates."""
        knows_step = worker.decode_step_s > 0
        if knows_step and worker.prefill_tokens_per_s > 0 and worker.read_bytes_per_s > 0:
            return WorkerRates(
                worker.prefill_tokens_per_s,
                worker.decode_step_s,
                worker.decode_sequence_s,
                worker.read_bytes_per_s,
            )
        assumed = self.assumed(worker.role)
        return WorkerRates(
            worker.prefill_tokens_per_s or assumed.prefill_tokens_per_s,
            worker.decode_step_s if knows_step else assumed.decode_step_s,
            worker.decode_sequence_s if knows_step else assumed.decode_sequence_s,
            worker.read_bytes_per_s or assumed.read_bytes_per_s,
        )

    def excess(self, decode: WorkerSnapshot) -> float:
        """By what share a decode worker got more of the router's last requests than others."""
        if self._fair_count is None:
            roles = [worker.role for worker in self._cluster.workers]
            num_decoders = roles.count(WorkerRole.DECODE) or roles.count(WorkerRole.BOTH)
            self._fair_count = fair_count(self._cluster.turn, num_decoders)
        return excess(decode.recent, self._cluster.turn, self._fair_count)

    def assumed(self, role: WorkerRole) -> WorkerRates:
        """Rates of a worker of the role that has not said anything of them."""
        if role not in self._assumed:
            alike = [worker for worker in self._cluster.workers if worker.role is role]
            self._assumed[role] = WorkerRates(
                self.assumed_prefill_tokens_per_s(role),
                self._typical(alike, attrgetter("decode_step_s")) or DEFAULT_DECODE_STEP_S,
                self._typical(alike, attrgetter("decode_sequence_s")) or DEFAULT_DECODE_SEQUENCE_S,
                self._typical(alike, attrgetter("read_bytes_per_s")) or DEFAULT_READ_BYTES_PER_S,
            )
        return self._assumed[role]

    def assumed_prefill_tokens_per_s(self, role: WorkerRole) -> float:
        """The first of these rates alone: the one that a glance at every worker needs."""
        if role not in self._assumed_prefill:
            alike = [worker for worker in self._cluster.workers if worker.role is role]
            typical = self._typical(alike, attrgetter("prefill_tokens_per_s"))
            self._assumed_prefill[role] = typical or DEFAULT_PREFILL_TOKENS_PER_S
        return self._assumed_prefill[role]

    def _typical(self, alike: Iterable[WorkerSnapshot], attribute: Attribute) -> float:
        """The median of those workers that know it, else of all workers that do, else 0."""
        for workers in (alike, self._cluster.workers):
            known = [value for value in map(attribute, workers) if value > 0]
            if known:
                return median(known)
        return 0.0
