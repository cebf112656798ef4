"""Estimates on which prices of plans rest.

The speeds of the workers (reported, otherwise assumed), the times that follow from them, and what recent requests lead
to expect of the next: the reuse of prefixes and the length of outputs.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from operator import attrgetter
from statistics import median

from baton.router.policy.cluster import ClusterSnapshot, RoutedRequest, WorkerRole, WorkerSnapshot, excess, fair_count

# Used until a worker has reported: roughly an 8B model on a recent GPU. Only their proportions matter.
DEFAULT_PREFILL_TOKENS_PER_S = 10_000.0
DEFAULT_DECODE_STEP_S = 0.010
DEFAULT_DECODE_SEQUENCE_S = 0.0001
DEFAULT_READ_BYTES_PER_S = 5e9
DEFAULT_FETCH_BYTES_PER_S = 1e9

Attribute = Callable[[WorkerSnapshot], float]


@dataclass(slots=True)
class WorkerRates:
    """Rates of a worker, reported or assumed."""

    prefill_tokens_per_s: float
    decode_step_s: float
    decode_sequence_s: float
    read_bytes_per_s: float


class RateBook:
    """Rates of the workers in a snapshot: reported, otherwise the median of their role, of all workers, or defaults.

    A book serves the choice for one request.
    """

    def __init__(self, cluster: ClusterSnapshot) -> None:
        self.times: dict[str, WorkerTimes] = {}  # of the request, by incarnation; filled by the cost model
        self._cluster = cluster
        self._roles = [worker.role for worker in cluster.workers]
        self._fair_count: float | None = None
        self._all_prompts_shares: dict[str, float] = {}  # by KV fingerprint
        self._assumed: dict[WorkerRole, WorkerRates] = {}
        self._assumed_prefill: dict[WorkerRole, float] = {}

    def of(self, worker: WorkerSnapshot) -> WorkerRates:
        """Return the rates of a worker."""
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
        """Return the share by which a decode worker received more recent requests than the average."""
        if self._fair_count is None:
            num_decoders = self._roles.count(WorkerRole.DECODE) or self._roles.count(WorkerRole.BOTH)
            self._fair_count = fair_count(self._cluster.turn, num_decoders)
        return excess(decode.recent, self._cluster.turn, self._fair_count)

    def all_prompts_share(self, kv_fingerprint: str, least_free_share: float) -> float:
        """Return the share of their time that prompts would take if the workers that prefill for decode workers
        computed all recent prompts, each for an equal share of its time. KV moves only between equal fingerprints.

        0 if these cannot leave all sequences to decode workers: none has `least_free_share` of its blocks free.
        """
        share = self._all_prompts_shares.get(kv_fingerprint)
        if share is None:
            share = self._all_prompts_shares[kv_fingerprint] = (
                self._shared_prompts(kv_fingerprint, least_free_share) if WorkerRole.DECODE in self._roles else 0.0
            )
        return share

    def _shared_prompts(self, kv_fingerprint: str, least_free_share: float) -> float:
        num_computed = num_possible = 0.0  # prompt tokens per second
        has_memory, decode_role = False, WorkerRole.DECODE
        for worker in self._cluster.workers:
            if worker.kv_fingerprint != kv_fingerprint:
                continue
            rate, share = worker.prefill_tokens_per_s, worker.prompt_share
            num_computed += rate * share if share < 1 else rate
            if worker.role is not decode_role:
                num_possible += rate or self.assumed_prefill_tokens_per_s(worker.role)
            elif not has_memory:
                has_memory = worker.num_free_blocks >= least_free_share * worker.num_blocks
        return num_computed / num_possible if has_memory and num_possible else 0.0

    def assumed(self, role: WorkerRole) -> WorkerRates:
        """Return the rates assumed for a worker of this role that has reported none."""
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
        """Return the assumed prefill rate alone, which the shortlist needs for every worker."""
        if role not in self._assumed_prefill:
            alike = [worker for worker in self._cluster.workers if worker.role is role]
            typical = self._typical(alike, attrgetter("prefill_tokens_per_s"))
            self._assumed_prefill[role] = typical or DEFAULT_PREFILL_TOKENS_PER_S
        return self._assumed_prefill[role]

    def _typical(self, alike: Iterable[WorkerSnapshot], attribute: Attribute) -> float:
        """Return the median over `alike` if any of them reports it, otherwise over all workers, otherwise 0."""
        for workers in (alike, self._cluster.workers):
            known = [value for value in map(attribute, workers) if value > 0]
            if known:
                return median(known)
        return 0.0


@dataclass(slots=True)
class WorkerTimes:
    """Predicted times of one worker for one request, in seconds, and what they follow from."""

    worker: WorkerSnapshot
    rates: WorkerRates
    missing: int  # tokens of the prompt that the worker lacks
    num_step_tokens: int  # token budget of a step
    num_running: int  # sequences that run, or soon will
    num_decoding: int  # those of `num_running` that decode, or will when the prompts there are computed
    step_s: float  # of a step that decodes these
    queue_s: float  # until its queued prompts are computed; at least half of the step in flight
    room_s: float  # until enough sequences have finished for a place in the batch and the blocks of the prompt
    fetched: int = 0  # of `missing`, that are fetched from a store
    fetch_s: float = 0.0  # the fetch, which does not wait for queued prompts
    adapter_s: float = 0.0  # to load the request's adapter into a slot

    @property
    def computed(self) -> int:
        """Tokens of the prompt that the worker must compute if no other one does."""
        return self.missing - self.fetched

    @property
    def start_s(self) -> float:
        """Seconds until it can start computing."""
        return self.room_s + max(self.queue_s, self.fetch_s) + self.adapter_s

    @property
    def evicted_adapter_s(self) -> float:
        """Seconds to load another adapter again, whose slot the request's takes; 0: a slot is free."""
        num_slots = self.worker.max_loras
        return self.adapter_s if num_slots and len(self.worker.resident_adapters) >= num_slots else 0.0

    @classmethod
    def of(
        cls, request: RoutedRequest, worker: WorkerSnapshot, rates: WorkerRates, num_step_tokens: int
    ) -> "WorkerTimes":
        """`num_step_tokens`: budget of a worker that reports none."""
        num_step_tokens = worker.max_num_batched_tokens or num_step_tokens
        missing = request.missing_tokens(worker)
        num_running = worker.num_requests
        fetch = _fetch(request, worker, rates) if request.stored_tokens else (0, 0.0)
        adapter_s = request.adapter_load_s(worker)
        if not num_running:
            return cls(worker, rates, missing, num_step_tokens, 0, 0, rates.decode_step_s, 0.0, 0.0, *fetch, adapter_s)
        if worker.max_num_seqs and num_running > worker.max_num_seqs:
            num_running = worker.max_num_seqs
        step_s = rates.decode_step_s + rates.decode_sequence_s * (num_running - 1)
        queued = worker.num_queued_tokens
        queue_s = queued / rates.prefill_tokens_per_s + max(0.5, queued / num_step_tokens) * step_s
        end_s = request.mean_output_tokens * step_s / num_running  # from one end to the next
        room_s = num_ends_needed(request, worker, num_running) * end_s
        return cls(
            worker,
            rates,
            missing,
            num_step_tokens,
            num_running,
            _num_decoding(worker, num_running),
            step_s,
            queue_s,
            room_s,
            *fetch,
            adapter_s,
        )


def _num_decoding(worker: WorkerSnapshot, num_running: int) -> int:
    """Return how many of the running sequences decode, or will when the prompts there are computed.

    Those whose prompts other workers compute are left out: when they begin to decode, about as many others will have
    ended.
    """
    if worker.role is WorkerRole.PREFILL:
        return 0
    return max(0, min(num_running, worker.num_requests - worker.num_prefills - worker.num_receiving))


def _fetch(request: RoutedRequest, worker: WorkerSnapshot, rates: WorkerRates) -> tuple[int, float]:
    """Return how many tokens the worker fetches from a store, and the seconds; none if it computes them sooner."""
    num_tokens = request.fetchable_tokens(worker)
    token_bytes = worker.block_bytes / worker.block_size
    fetch_s = num_tokens * token_bytes / (worker.fetch_bytes_per_s or DEFAULT_FETCH_BYTES_PER_S)
    return (num_tokens, fetch_s) if fetch_s * rates.prefill_tokens_per_s < num_tokens else (0, 0.0)


def num_ends_needed(request: RoutedRequest, worker: WorkerSnapshot, num_running: int) -> float:
    """Return how many running sequences must finish before the request has a place and its blocks."""
    num_ends = 0.0
    if worker.max_num_seqs:
        num_ends = float(max(0, worker.num_requests + 1 - worker.max_num_seqs))
    needed = ceil(request.num_tokens / worker.block_size) + worker.num_awaited_blocks
    lacking = needed + num_running - worker.num_free_blocks  # a worker leaves a block to each running sequence
    if lacking > 0 and worker.num_blocks > worker.num_free_blocks:
        blocks_each = (worker.num_blocks - worker.num_free_blocks) / num_running
        num_ends = max(num_ends, lacking / blocks_each)
    return num_ends


REUSE_DECAY = 0.99  # of a prompt's weight per later prompt: about the last hundred count
REUSE_FIRST_GUESS = 0.5
REUSE_FIRST_WEIGHT = 2000.0  # tokens that the guess counts for


class ReuseShare:
    """Share of recent prompts' tokens that some worker had cached on arrival."""

    def __init__(self) -> None:
        self._num_tokens = REUSE_FIRST_WEIGHT
        self._num_cached = REUSE_FIRST_WEIGHT * REUSE_FIRST_GUESS

    def note(self, num_tokens: int, num_cached: int) -> None:
        """Count a prompt; `num_cached`: tokens that the worker with most of it had."""
        self._num_tokens = REUSE_DECAY * self._num_tokens + num_tokens
        self._num_cached = REUSE_DECAY * self._num_cached + num_cached

    @property
    def value(self) -> float:
        """0 to 1."""
        return self._num_cached / self._num_tokens


LENGTH_DECAY = 0.99  # of an output's weight per later output: about the last hundred count
LENGTH_FIRST_GUESS = 256.0  # tokens
LENGTH_FIRST_WEIGHT = 4  # outputs that the guess counts for
NUM_REMEMBERED = 128  # individual lengths of recent outputs
NUM_TYPICAL = 4  # representative lengths


class OutputLength:
    """Lengths of recent outputs in tokens: their mean and their spread."""

    def __init__(self) -> None:
        self._num_answers = float(LENGTH_FIRST_WEIGHT)
        self._num_tokens = LENGTH_FIRST_WEIGHT * LENGTH_FIRST_GUESS
        self._last = deque([LENGTH_FIRST_GUESS] * LENGTH_FIRST_WEIGHT, maxlen=NUM_REMEMBERED)
        self._typical: tuple[float, ...] | None = None  # None: to be computed

    def note(self, num_tokens: int) -> None:
        """Count an output of this length."""
        self._num_answers = LENGTH_DECAY * self._num_answers + 1
        self._num_tokens = LENGTH_DECAY * self._num_tokens + num_tokens
        self._last.append(float(num_tokens))
        self._typical = None

    @property
    def mean(self) -> float:
        """Mean length; at least 1."""
        return max(1.0, self._num_tokens / self._num_answers)

    @property
    def typical(self) -> tuple[float, ...]:
        """A few equally likely lengths, shortest first; each at least 1.

        They are the medians of equal parts of the recent outputs. The mean alone would hide that a prompt computed in
        between, which most outputs hardly notice, delays a short one.
        """
        if self._typical is None:
            ordered = sorted(self._last)
            places = [(2 * part + 1) * len(ordered) // (2 * NUM_TYPICAL) for part in range(NUM_TYPICAL)]
            self._typical = tuple(max(1.0, ordered[place]) for place in places)
        return self._typical
