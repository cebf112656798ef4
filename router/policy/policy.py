"""Which workers serve a request: pure functions over a snapshot, without clock or I/O.

1. The candidates are found: what fits the request's length, as its hints leave it.
2. Of many, those are priced that look best by what they have to compute and what of the prompt they lack; workers of
   both roles prefill for decode workers, and decode what these have no room for.
3. The prompt is priced at each prefill worker, with its prefix pulled from who has most of it, or computed anew.
4. Every decode worker is priced with the prompt computed there, and with the best of the prefill workers.
5. The cheapest plan wins; plans that are as good as equal are told apart by chance, which differs between routers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice

from baton.router.policy.candidates import find_candidates
from baton.router.policy.cluster import ClusterSnapshot, Plan, RoutedRequest, WorkerRole, WorkerSnapshot
from baton.router.policy.cost_model import CostModel, PrefillOption, Price
from baton.router.policy.rates import RateBook
from baton.router.request_context import HintedPlan

Policy = Callable[[RoutedRequest, ClusterSnapshot], Plan]

MAX_DECODERS = 8  # priced in full
MAX_PREFILLERS = 8
MAX_FALLBACKS = 2  # prefill workers that are asked in turn if the chosen one fails
MAX_OPTIONS = 2  # ways through a prefill worker that are combined with each decode worker
REQUEST_TOKENS = 16  # in the first, rough look a request counts like so many tokens
TIE_SHARE = 0.02  # of a price; predictions are not better than that, and reports not newer
TIE_S = 0.0005
MASK = (1 << 64) - 1


@dataclass(slots=True)
class Priced:
    """A plan's parts, and its price."""

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
    """The best plan's price, and that of the best plan of the other kind."""

    best: Priced
    plans: Sequence[Priced]  # all

    def __str__(self) -> str:
        others = [plan for plan in self.plans if (plan.option is None) is not (self.best.option is None)]
        return f"{self.best}; instead of {min(others, key=lambda plan: plan.cost)}" if others else str(self.best)


def choose(
    request: RoutedRequest, cluster: ClusterSnapshot, model: CostModel, local_prefill_below: int | None = None
) -> Plan:
    """The cheapest plan. Raises NoWorker if no worker can decode, ImpossiblePlan for hints that cannot be followed.

    `local_prefill_below` decides without prices who computes the prompt, wherever both are possible: the decode worker
    if it lacks fewer tokens; None: the cheaper one.
    """
    candidates = find_candidates(request, cluster)
    book = RateBook(cluster)
    decoders = find_decoders(request, candidates.decoders, model, book)
    options = {
        decode.fingerprint: prefill_options(request, cluster, candidates.prefillers_for(decode), model, book)
        for decode in _one_a_fingerprint(decoders)
        if candidates.plan != "local"
    }
    plans: list[Priced] = []
    for decode in decoders:
        usable = options.get(decode.fingerprint, []) if decode.role is not WorkerRole.BOTH else []
        plan = candidates.plan or _plan_by_size(request, decode, local_prefill_below)
        times = model.times(request, decode, book)
        unfair_s = model.unfair_s(request, times, book)
        if not usable or plan != "remote":
            price = model.local(request, times, unfair_s)
            plans.append(Priced(decode, None, price, model.cost(price)))
        if plan != "local":
            for option in usable[:MAX_OPTIONS]:
                price = model.remote(request, times, option, unfair_s)
                plans.append(Priced(decode, option, price, model.cost(price)))
    return _cheapest(plans, options, cluster)


def find_decoders(
    request: RoutedRequest, workers: list[WorkerSnapshot], model: CostModel, book: RateBook
) -> list[WorkerSnapshot]:
    """The decode workers that are priced. Workers of both roles, which prefill for these, decode themselves only where
    no decode worker has room within what is promised.
    """
    decoders = [worker for worker in workers if worker.role is not WorkerRole.BOTH]
    others = [worker for worker in workers if worker.role is WorkerRole.BOTH]

    def has_room(decode: WorkerSnapshot) -> bool:
        return not model.is_tight(model.times(request, decode, book))

    listed = shortlist(request, decoders, book, MAX_DECODERS)
    if not others or any(map(has_room, listed)):
        return listed
    if len(decoders) > len(listed) and (roomy := list(filter(has_room, decoders))):
        return shortlist(request, roomy, book, MAX_DECODERS)
    return listed + shortlist(request, others, book, MAX_DECODERS)


def shortlist(
    request: RoutedRequest, workers: list[WorkerSnapshot], book: RateBook, count: int
) -> list[WorkerSnapshot]:
    """The workers that look best at a glance, which is cheap for a thousand of them."""
    if len(workers) <= count:
        return workers
    cached, num_tokens = request.cached_tokens, request.num_tokens
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
    """The ways through a prefill worker, the best first."""
    options: list[PrefillOption] = []
    sources = find_prefix_sources(request, cluster, prefillers[0].fingerprint) if prefillers else []
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
    """The two workers with most of the prefix: a prefill worker pulls from the first that it is not itself.

    That may be the decode worker: in a chat it has the turns before, which the prefill worker never saw whole.
    """
    cached = request.cached_tokens
    sources = [
        worker for worker in cluster.workers if worker.incarnation in cached and worker.fingerprint == fingerprint
    ]
    return nsmallest(2, sources, key=lambda worker: (-cached[worker.incarnation], worker.num_requests))


def _one_a_fingerprint(decoders: Iterable[WorkerSnapshot]) -> Iterator[WorkerSnapshot]:
    """One decode worker of each fingerprint that can be handed a prompt."""
    seen: set[str] = set()
    for decode in decoders:
        if decode.role is not WorkerRole.BOTH and decode.fingerprint not in seen:
            seen.add(decode.fingerprint)
            yield decode


def _plan_by_size(request: RoutedRequest, decode: WorkerSnapshot, local_prefill_below: int | None) -> HintedPlan | None:
    if local_prefill_below is None:
        return None
    return "local" if request.missing_tokens(decode) < local_prefill_below else "remote"


def _cheapest(plans: list[Priced], options: Mapping[str, list[PrefillOption]], cluster: ClusterSnapshot) -> Plan:
    best = _break_tie(plans, cluster)
    option, reason = best.option, Comparison(best, plans)
    if option is None:
        return Plan(best.decode, None, None, reason)
    fallbacks = _fallbacks(option, options[best.decode.fingerprint])
    return Plan(best.decode, option.prefill, option.source, reason, fallbacks)


def _fallbacks(chosen: PrefillOption, options: Iterable[PrefillOption]) -> tuple[WorkerSnapshot, ...]:
    """The next best prefill workers; `options` has the best first."""
    others = {option.prefill.incarnation: option.prefill for option in options if option.prefill is not chosen.prefill}
    return tuple(islice(others.values(), MAX_FALLBACKS))


def _break_tie(plans: list[Priced], cluster: ClusterSnapshot) -> Priced:
    """Of two as good as the cheapest, taken by chance, the one whose workers have done less.

    Always the one that has done least would bring all routers to the same worker.
    """
    least = min(plan.cost for plan in plans)
    ties = [plan for plan in plans if plan.cost <= least * (1 + TIE_SHARE) + TIE_S]
    if len(ties) == 1:
        return ties[0]
    number = chance(cluster.seed + cluster.turn)
    first, second = number % len(ties), number // len(ties) % (len(ties) - 1)
    return min(ties[first], ties[second + (second >= first)], key=_num_tokens_done)


def chance(number: int) -> int:
    """A number below 2**64 that looks drawn, the same for the same `number` (the mixing of SplitMix64, 2014)."""
    mixed = number * 0x9E3779B97F4A7C15 & MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
    return mixed ^ mixed >> 31


def _num_tokens_done(plan: Priced) -> int:
    prefill = plan.option.prefill if plan.option is not None else plan.decode
    return plan.decode.num_tokens_done + prefill.num_tokens_done
