"""The choice of workers for a request: pure functions over a snapshot, without clock or I/O.

1. Find the candidates: workers that fit the request's length and its hints.
2. Shortlist those with the least queued work and the most of the prompt cached. Colocated workers prefill for decode
   workers, and decode as long as their prompts leave room for that, or if decode workers have none.
3. Price the prompt at each prefill worker, with the prefix pulled from the worker that has most of it or computed anew.
4. Price each decode worker with the prompt computed there, and with the best prefill workers.
5. Take the cheapest plan. Among nearly equal plans chance decides, differently in each router.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice

from baton.router.policy.cluster import (
    ClusterSnapshot,
    Plan,
    RoutedRequest,
    WorkerRole,
    WorkerSnapshot,
    find_candidates,
)
from baton.router.policy.cost_model import CostModel, PrefillOption, Price
from baton.router.policy.estimates import RateBook
from baton.router.policy.targets import TIGHT_SHARE
from baton.router.request_context import HintedPlan

Policy = Callable[[RoutedRequest, ClusterSnapshot], Plan]

MAX_DECODERS = 8  # priced in full
MAX_PREFILLERS = 8
MAX_FALLBACKS = 2  # prefill workers to try if the chosen one fails
MAX_OPTIONS = 2  # prefill options combined with each decode worker
REQUEST_TOKENS = 16  # weight of a request in the shortlist, in tokens
TIE_SHARE = 0.02  # of a price; predictions are no better than that, and reports no newer
TIE_S = 0.0005
MASK = (1 << 64) - 1


@dataclass(slots=True)
class Priced:
    """A plan with its price."""

    decode: WorkerSnapshot
    option: PrefillOption | None
    price: Price
    cost: float

    def __str__(self) -> str:
        name = self.decode.worker_id
        if self.option is None:
            return f"local at {name}: {self.price}"
        source = f" with the prefix of {self.option.source.worker_id}" if self.option.source is not None else ""
        return f"remote at {name} through {self.option.prefill.worker_id}{source}: {self.price}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The best plan and its alternatives; as text, with the best alternative of the other kind."""

    best: Priced
    plans: Sequence[Priced]  # including the best

    def __str__(self) -> str:
        others = [plan for plan in self.plans if (plan.option is None) is not (self.best.option is None)]
        return f"{self.best}; instead of {min(others, key=lambda plan: plan.cost)}" if others else str(self.best)


def choose(
    request: RoutedRequest, cluster: ClusterSnapshot, model: CostModel, local_prefill_below: int | None = None
) -> Plan:
    """Return the cheapest plan. Raises NoWorker if no worker can decode, ImpossiblePlan for wrong hints.

    With `local_prefill_below` the decode worker computes the prompt if it lacks fewer tokens than that, and otherwise a
    prefill worker does, wherever both are possible. None: prices decide.
    """
    candidates = find_candidates(request, cluster)
    book = RateBook(cluster)
    decoders = find_decoders(request, candidates.decoders, model, book)
    options = {
        decode.kv_fingerprint: prefill_options(request, cluster, candidates.prefillers_for(decode), model, book)
        for decode in _one_a_fingerprint(decoders)
        if candidates.plan != "local"
    }
    plans: list[Priced] = []
    for decode in decoders:
        usable = options.get(decode.kv_fingerprint, []) if decode.role is not WorkerRole.BOTH else []
        plan = candidates.plan or _plan_by_size(request, decode, local_prefill_below)
        decode_option = model.decode_option(request, model.times(request, decode, book), book)
        if not usable or plan != "remote":
            price = model.local(request, decode_option)
            plans.append(Priced(decode, None, price, model.cost(price)))
        if plan != "local":
            for option in usable[:MAX_OPTIONS]:
                price = model.remote(request, decode_option, option)
                plans.append(Priced(decode, option, price, model.cost(price)))
    return _cheapest(plans, options, cluster)


@dataclass(frozen=True, slots=True)
class CostPolicy:
    """The cheapest plan."""

    model: CostModel = field(default_factory=CostModel)
    local_prefill_below: int | None = (
        None  # threshold in tokens for local prefill instead of prices; None: prices decide
    )

    def __call__(self, request: RoutedRequest, cluster: ClusterSnapshot) -> Plan:
        """Return the plan. Raises NoWorker if no worker can decode, ImpossiblePlan for wrong hints."""
        return choose(request, cluster, self.model, self.local_prefill_below)


def find_decoders(
    request: RoutedRequest, workers: list[WorkerSnapshot], model: CostModel, book: RateBook
) -> list[WorkerSnapshot]:
    """Return the workers to price for decoding.

    Colocated workers, which prefill for decode workers, are included as long as they have room within the targets next
    to their prompts: a sequence that decodes where its prompt is computed needs one cache, not two. They are also
    included if an output is no slower there than at any decode worker with the prompts that it computes itself.
    Otherwise they are included only if no decode worker has room.
    """
    decoders = [worker for worker in workers if worker.role is not WorkerRole.BOTH]
    others = [worker for worker in workers if worker.role is WorkerRole.BOTH]

    def has_room(decode: WorkerSnapshot) -> bool:
        return not model.is_tight(request, model.times(request, decode, book))

    listed = shortlist(request, decoders, book, MAX_DECODERS)
    if not others:
        return listed
    if any(map(has_room, listed)):
        return listed + _sharing(request, listed, shortlist(request, others, book, MAX_DECODERS), model, book)
    if len(decoders) > len(listed) and (roomy := list(filter(has_room, decoders))):
        return shortlist(request, roomy, book, MAX_DECODERS)
    if roomy := list(filter(has_room, others)):
        return shortlist(request, roomy, book, MAX_DECODERS)
    return listed + shortlist(request, others, book, MAX_DECODERS)


def _sharing(
    request: RoutedRequest,
    decoders: list[WorkerSnapshot],
    colocated: list[WorkerSnapshot],
    model: CostModel,
    book: RateBook,
) -> list[WorkerSnapshot]:
    """Return the colocated workers that decode next to decode workers with room; without targets none does."""
    targets = model.targets
    if targets is None:
        return []
    roomy = [each for each in colocated if not model.is_tight(request, model.times(request, each, book))]
    if len(roomy) == len(colocated):
        return roomy
    least = min(targets.token_share(model.times(request, each, book), 1) for each in decoders)
    if least <= TIGHT_SHARE:
        return roomy
    return [each for each in colocated if not model.is_tight(request, model.times(request, each, book), least)]


def shortlist(
    request: RoutedRequest, workers: list[WorkerSnapshot], book: RateBook, count: int
) -> list[WorkerSnapshot]:
    """Return the workers with the least estimated work; cheap for a thousand of them."""
    if len(workers) <= count:
        return workers
    cached, num_tokens = request.cached_tokens, request.num_tokens
    if request.stored_tokens:
        names = {*cached, *request.stored_tokens}
        cached = {name: max(cached.get(name, 0), request.stored_tokens.get(name, 0)) for name in names}
    has_silent = any(not worker.prefill_tokens_per_s for worker in workers)
    assumed = {role: book.assumed_prefill_tokens_per_s(role) for role in WorkerRole} if has_silent else {}
    glances_s = [
        (
            worker.num_queued_tokens
            + REQUEST_TOKENS * worker.num_requests
            + num_tokens
            - cached.get(worker.incarnation, 0)
        )
        / (worker.prefill_tokens_per_s or assumed[worker.role])
        + request.adapter_load_s(worker)
        for worker in workers
    ]
    places = nsmallest(count, range(len(workers)), key=glances_s.__getitem__)
    return [workers[place] for place in places]


def prefill_options(
    request: RoutedRequest,
    cluster: ClusterSnapshot,
    prefillers: list[WorkerSnapshot],
    model: CostModel,
    book: RateBook,
) -> list[PrefillOption]:
    """Return the prefill workers with their possible prefix sources, best first."""
    options: list[PrefillOption] = []
    sources = find_prefix_sources(request, cluster, prefillers[0].kv_fingerprint) if prefillers else []
    for prefill in shortlist(request, prefillers, book, MAX_PREFILLERS):
        times = model.times(request, prefill, book)
        options.append(model.option(request, times))
        source = next((each for each in sources if each.incarnation != prefill.incarnation), None)
        if source is not None:
            gain = times.missing - request.missing_tokens(source)
            if gain >= model.min_source_blocks * prefill.block_size:
                options.append(model.option(request, times, source))
    return sorted(options, key=model.option_cost)


def find_prefix_sources(request: RoutedRequest, cluster: ClusterSnapshot, fingerprint: str) -> list[WorkerSnapshot]:
    """Return the two workers with most of the prefix. A prefill worker pulls from the first that is another worker.

    It may be the decode worker: in a chat that has the earlier turns, which the prefill worker never saw as a whole.
    """
    cached = request.cached_tokens
    sources = [
        worker for worker in cluster.workers if worker.incarnation in cached and worker.kv_fingerprint == fingerprint
    ]
    return nsmallest(2, sources, key=lambda worker: (-cached[worker.incarnation], worker.num_requests))


def _one_a_fingerprint(decoders: Iterable[WorkerSnapshot]) -> Iterator[WorkerSnapshot]:
    """Yield one decode worker per KV fingerprint among those that can receive KV."""
    seen: set[str] = set()
    for decode in decoders:
        if decode.role is not WorkerRole.BOTH and decode.kv_fingerprint not in seen:
            seen.add(decode.kv_fingerprint)
            yield decode


def _plan_by_size(request: RoutedRequest, decode: WorkerSnapshot, local_prefill_below: int | None) -> HintedPlan | None:
    if local_prefill_below is None:
        return None
    num_computed = request.missing_tokens(decode) - request.fetchable_tokens(decode)
    return "local" if num_computed < local_prefill_below else "remote"


def _cheapest(plans: list[Priced], options: Mapping[str, list[PrefillOption]], cluster: ClusterSnapshot) -> Plan:
    best = _break_tie(plans, cluster)
    option, reason = best.option, Comparison(best, plans)
    if option is None:
        return Plan(best.decode, None, None, reason)
    fallbacks = _fallbacks(option, options[best.decode.kv_fingerprint])
    return Plan(best.decode, option.prefill, option.source, reason, fallbacks)


def _fallbacks(chosen: PrefillOption, options: Iterable[PrefillOption]) -> tuple[WorkerSnapshot, ...]:
    """Return the next best prefill workers; `options` is sorted best first."""
    others = {option.prefill.incarnation: option.prefill for option in options if option.prefill is not chosen.prefill}
    return tuple(islice(others.values(), MAX_FALLBACKS))


def _break_tie(plans: list[Priced], cluster: ClusterSnapshot) -> Priced:
    """Pick two plans at random among the nearly cheapest, and return the one whose workers have done less.

    Always taking the least used would send all routers to the same worker.
    """
    least = min(plan.cost for plan in plans)
    ties = [plan for plan in plans if plan.cost <= least * (1 + TIE_SHARE) + TIE_S]
    if len(ties) == 1:
        return ties[0]
    number = chance(cluster.seed + cluster.turn)
    first, second = number % len(ties), number // len(ties) % (len(ties) - 1)
    return min(ties[first], ties[second + (second >= first)], key=_num_tokens_done)


def chance(number: int) -> int:
    """Return a pseudorandom number below 2**64 that depends only on `number` (SplitMix64, 2014)."""
    mixed = number * 0x9E3779B97F4A7C15 & MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
    return mixed ^ mixed >> 31


def _num_tokens_done(plan: Priced) -> int:
    prefill = plan.option.prefill if plan.option is not None else plan.decode
    return plan.decode.num_tokens_done + prefill.num_tokens_done
