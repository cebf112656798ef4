"""Snapshot of the workers, as a policy sees them, and the candidates for a request among them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from baton.engine.errors import InvalidRequest
from baton.engine.pooling.config import PoolingConfig
from baton.router.adapters.adapter import Adapter
from baton.router.errors import NoWorker
from baton.router.request_context import NO_HINTS, HintedPlan, RoutingHints

WINDOW = 512  # requests after which the weight of one falls to 1/e
DEFAULT_ADAPTER_LOAD_S = 0.01  # until a worker has reported: some 100 MB to a GPU
FAIRNESS_SLACK = 4.0  # requests by which the counts of workers may differ without a penalty


@dataclass(frozen=True, slots=True)
class RecentRequests:
    """A decayed count of requests, as of a turn of the router."""

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
    """Return the count of each worker at a turn if all had received equally many requests."""
    return WINDOW * (1 - (1 - 1 / WINDOW) ** turn) / max(1, num_workers)


def excess(recent: RecentRequests, turn: int, fair: float) -> float:
    """Return the share by which a worker received more than `fair_count`; at least 0."""
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
    fingerprint: str  # of model and weights
    kv_fingerprint: str = ""  # KV moves only between equal ones; default: `fingerprint`
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
    fetch_bytes_per_s: float = 0.0  # of KV from the stores below its pool
    kv_stores: tuple[str, ...] = ()  # names of these stores
    num_prefills: int = 0  # prompts computed for other workers, which will not decode here
    num_awaited_blocks: int = 0  # blocks that its waiting requests need
    num_receiving: int = 0  # requests whose prompts other workers compute for it
    prompt_share: float = 0.0  # recent share of its time spent on prompts
    num_tokens_done: int = 0  # prompt and output tokens since it started
    recent: RecentRequests = NO_REQUESTS  # requests that this router sent there
    pooling: PoolingConfig | None = None  # how it makes embeddings; None: it makes none
    adapters: Mapping[str, str] = field(default_factory=dict)  # digests of the adapters that it has, by name
    resident_adapters: frozenset[str] = frozenset()  # those of them in its slots
    max_loras: int = 0  # its slots; 0: unknown
    adapter_load_s: float = 0.0  # of loading one into a slot

    def __post_init__(self) -> None:
        """Set the default of `kv_fingerprint`."""
        if not self.kv_fingerprint:
            object.__setattr__(self, "kv_fingerprint", self.fingerprint)


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """Workers that take requests."""

    workers: tuple[WorkerSnapshot, ...]
    turn: int = 0  # number of requests routed so far
    seed: int = 0  # differs between routers, so that they break ties differently

    def decoders(self) -> list[WorkerSnapshot]:
        """Return the workers that decode."""
        return [worker for worker in self.workers if worker.role is not WorkerRole.PREFILL]

    def having(self, adapter: Adapter | None) -> "ClusterSnapshot":
        """Return the snapshot without workers that lack an adapter, or have other contents of its name."""
        if adapter is None:
            return self
        workers = (each for each in self.workers if each.adapters.get(adapter.name) == adapter.digest)
        return ClusterSnapshot(tuple(workers), self.turn, self.seed)

    def without(self, excluded: frozenset[str], fingerprint: str = "") -> "ClusterSnapshot":
        """Return the snapshot without these incarnations and, if `fingerprint` is given, without other fingerprints."""
        kept = (worker for worker in self.workers if worker.incarnation not in excluded)
        return ClusterSnapshot(
            tuple(worker for worker in kept if fingerprint in ("", worker.fingerprint)), self.turn, self.seed
        )


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Lengths of a prompt's prefix in tokens, by incarnation of the worker that has it; workers without are omitted."""

    in_pool: dict[str, int]
    in_stores: dict[str, int] = field(default_factory=dict)  # in stores below the pool

    @classmethod
    def of(cls, cluster: ClusterSnapshot, cached: dict[str, int], stored: dict[str, int]) -> "CachedTokens":
        """cached: lengths by incarnation, of other workers, too; stored: by the name of a store."""
        in_pool = {each.incarnation: cached[each.incarnation] for each in cluster.workers if each.incarnation in cached}
        if not stored:
            return cls(in_pool)
        lengths = {
            each.incarnation: max((stored.get(name, 0) for name in each.kv_stores), default=0)
            for each in cluster.workers
        }
        return cls(in_pool, {incarnation: length for incarnation, length in lengths.items() if length})


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
    stored_tokens: Mapping[str, int] = field(default_factory=dict)  # in stores below a worker's pool, by incarnation
    adapter: Adapter | None = None  # None: the model itself

    @property
    def adapter_name(self) -> str:
        """Name of its adapter; empty: none."""
        return "" if self.adapter is None else self.adapter.name

    def adapter_load_s(self, worker: WorkerSnapshot) -> float:
        """Return the seconds until the worker has the request's adapter in a slot, if it is loaded at once."""
        if self.adapter is None or self.adapter.name in worker.resident_adapters:
            return 0.0
        return worker.adapter_load_s or DEFAULT_ADAPTER_LOAD_S

    @property
    def expected_output_tokens(self) -> float:
        """Expected length of its output: the mean, but no more than its limit; at least 1."""
        num_allowed = self.num_final_tokens - self.num_tokens
        return max(1.0, min(self.mean_output_tokens, num_allowed)) if num_allowed > 0 else self.mean_output_tokens

    def missing_tokens(self, worker: WorkerSnapshot) -> int:
        """Return the tokens whose KV the worker lacks. The last one is always computed, for its logits."""
        return self.num_tokens - min(self.cached_tokens.get(worker.incarnation, 0), self.num_tokens - 1)

    def fetchable_tokens(self, worker: WorkerSnapshot) -> int:
        """Return how many of the missing tokens the stores below the worker's pool have."""
        stored = min(self.stored_tokens.get(worker.incarnation, 0), self.num_tokens - 1)
        return max(0, stored - self.cached_tokens.get(worker.incarnation, 0))


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


class ImpossiblePlan(InvalidRequest):
    """The hints name an unknown worker, or a plan that the workers cannot serve."""


class NoPrefiller(ImpossiblePlan):
    """The plan is remote and leaves the prefill worker open, but none that takes requests now fits a decode worker."""

    def __init__(self, message: str, fingerprints: frozenset[str]) -> None:
        """`fingerprints`: of the KV of decode workers that can receive some; empty if there is none."""
        super().__init__(message)
        self.fingerprints = fingerprints


DIFFERENT_KV = ": their models differ (quantizations of one model need --allow-mixed-quantization on all workers)"


@dataclass(frozen=True, slots=True)
class Candidates:
    """Possible workers: at least one decode worker, and at least one plan for each."""

    decoders: list[WorkerSnapshot]
    prefillers: list[WorkerSnapshot]  # of any fingerprint
    plan: HintedPlan | None = None  # None: the policy decides

    def prefillers_for(self, decode: WorkerSnapshot) -> list[WorkerSnapshot]:
        """Return the prefill workers with equal KV fingerprints; none for a colocated worker, which prefills itself."""
        if decode.role is WorkerRole.BOTH:
            return []
        return [worker for worker in self.prefillers if worker.kv_fingerprint == decode.kv_fingerprint]


def find_candidates(request: RoutedRequest, cluster: ClusterSnapshot) -> Candidates:
    """Return the workers for a request. Raises NoWorker if none can decode now, ImpossiblePlan for wrong hints."""
    needed = max(request.num_final_tokens, request.num_tokens + 1)
    decoders, prefillers, longest = [], [], 0
    for worker in cluster.workers:
        if worker.role is not WorkerRole.DECODE and worker.max_model_len > request.num_tokens:
            prefillers.append(worker)  # it samples the first token too
        if worker.role is WorkerRole.PREFILL:
            continue
        if worker.max_model_len >= needed:
            decoders.append(worker)
        else:
            longest = max(longest, worker.max_model_len)
    hints = request.hints
    if hints.decode_worker is not None or hints.prefill_worker is not None or hints.plan is not None:
        return _hinted(request, cluster, decoders, prefillers)
    if not decoders and longest:
        raise NoWorker(f"no decode worker takes {needed} tokens now; the most is {longest}")
    if not decoders:
        what = f"no decode worker with the adapter {request.adapter_name}" if request.adapter else "no decode worker"
        raise NoWorker(f"{what} is ready")
    return Candidates(decoders, prefillers)


def _hinted(
    request: RoutedRequest,
    cluster: ClusterSnapshot,
    decoders: list[WorkerSnapshot],
    prefillers: list[WorkerSnapshot],
) -> Candidates:
    hints = request.hints
    plan = hints.plan
    if hints.decode_worker is not None:
        decoders = _named(hints.decode_worker, "decode", cluster, decoders)
    if hints.prefill_worker is not None:
        if plan == "local":
            raise ImpossiblePlan(f"the plan is local, but prefill worker {hints.prefill_worker} is asked for")
        plan = "remote"
        prefillers = _named(hints.prefill_worker, "prefill", cluster, prefillers)
    if not decoders:
        raise NoWorker("no decode worker takes the request now")
    candidates = Candidates(decoders, prefillers, plan)
    if plan == "remote":
        able = [decode for decode in decoders if candidates.prefillers_for(decode)]
        if not able:
            names = ", ".join(decode.worker_id for decode in decoders[:4])
            receivers = [each for each in decoders if each.role is not WorkerRole.BOTH]
            if prefillers and receivers:
                names += DIFFERENT_KV
            if hints.prefill_worker is not None:
                raise ImpossiblePlan(f"the plan is remote, but {hints.prefill_worker} cannot prefill for {names}")
            fingerprints = frozenset(each.kv_fingerprint for each in receivers)
            raise NoPrefiller(f"the plan is remote, but no prefill worker can prefill for {names}", fingerprints)
        candidates = Candidates(able, prefillers, plan)
    return candidates


def _named(name: str, role: str, cluster: ClusterSnapshot, able: list[WorkerSnapshot]) -> list[WorkerSnapshot]:
    named = [worker for worker in able if worker.worker_id == name]
    if not named:
        found = next((worker for worker in cluster.workers if worker.worker_id == name), None)
        if found is None:
            raise ImpossiblePlan(f"{role} worker {name} is asked for, but no such worker takes requests now")
        raise ImpossiblePlan(
            f"{role} worker {name} is asked for, but it is in the role {found.role.value} and takes up to "
            f"{found.max_model_len} tokens"
        )
    return named
