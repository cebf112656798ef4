"""Workers and pools as the console shows them, from the router's connections."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import exp, isfinite

from baton.protos.worker_pb2 import ExpertShare, WorkerLoad
from baton.router.metrics.worker_series import cache_usage
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState

MAX_TEXT_CHARS = 160  # of an id, an address or an error
MAX_TIERS = 6
MAX_EXPERTS = 64  # of one worker
SMOOTH_S = 3.0  # time constant of token rates
MAX_GAP_S = 5 * SMOOTH_S  # between two readings of a rate; after a longer gap without viewers, rates start anew
ROLE_ORDER = [role.value for role in WorkerRole]


@dataclass(frozen=True, slots=True)
class TierRow:
    """A store below a worker's KV pool."""

    name: str
    num_bytes: int  # 0: not known
    capacity_bytes: int  # 0: not limited by the worker


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Tokens per second of a worker."""

    generated: float = 0.0
    prefilled: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """A worker's rank in an expert-parallel group, and its experts in the layer with the most uneven load."""

    group: str
    rank: int
    ranks: int
    layer: int
    experts: tuple[int, ...]
    num_experts: int  # in this layer, also of those that `experts` leaves out
    imbalance: float  # 0: not known yet
    rows: int  # token rows that its experts have computed since its start


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """One worker. All but the first five fields are unknown while the router is not connected to it."""

    model: str
    address: str
    id: str
    role: str  # empty: never known
    state: str  # of the connection; lost: the router was connected to it before
    error: str = ""  # why the connection was lost
    kv_used: float = 0.0  # share of its blocks
    running: int = 0
    waiting: int = 0
    receiving: int = 0  # those of `waiting` whose KV is being received
    handovers: int = 0
    rates: TokenRates = TokenRates()
    tiers: tuple[TierRow, ...] = ()
    experts: ExpertRow | None = None  # None: in no expert-parallel group

    @property
    def load(self) -> tuple[bool, int, float]:
        """Order of the rows: workers that need attention first, then by their load."""
        return self.state != "ready", self.running + self.waiting, self.kv_used


@dataclass(frozen=True, slots=True)
class PoolRow:
    """All workers of one role for one model."""

    model: str
    role: str
    workers: int
    ready: int
    draining: int
    kv_used: float
    running: int
    waiting: int
    generated_per_s: float
    prefilled_per_s: float
    tiers: tuple[TierRow, ...]


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    generated: int
    prefilled: int
    rates: TokenRates


@dataclass(slots=True)
class RateMeter:
    """Token rates of workers from readings of their counters, averaged over some `SMOOTH_S`."""

    _last: dict[str, _Reading] = field(default_factory=dict)  # by incarnation
    _next: dict[str, _Reading] = field(default_factory=dict)

    def read(self, incarnation: str, load: WorkerLoad, now_s: float) -> TokenRates:
        """Return a worker's rates as of this round; zero in its first, and in the first after `MAX_GAP_S`."""
        generated, prefilled = load.num_generated_tokens, load.num_prefilled_tokens
        last = self._last.get(incarnation)
        rates = TokenRates()
        if last is not None and last.at_s < now_s < last.at_s + MAX_GAP_S:
            passed_s = now_s - last.at_s
            weight = 1 - exp(-passed_s / SMOOTH_S)
            old = last.rates
            rates = TokenRates(
                round(old.generated + weight * ((generated - last.generated) / passed_s - old.generated), 1),
                round(old.prefilled + weight * ((prefilled - last.prefilled) / passed_s - old.prefilled), 1),
            )
        self._next[incarnation] = _Reading(now_s, generated, prefilled, rates)
        return rates

    def end_round(self) -> None:
        """Forget the workers that were not read in this round."""
        self._last, self._next = self._next, {}


def worker_row(model: str, connection: WorkerConnection, meter: RateMeter, now_s: float) -> WorkerRow:
    """Return the row of a worker."""
    description, state = connection.description, connection.state
    if description is None or state is ConnectionState.CONNECTING:
        last = connection.last_description
        return WorkerRow(
            model=model,
            address=connection.address[:MAX_TEXT_CHARS],
            id="" if last is None else last.worker_id[:MAX_TEXT_CHARS],
            role="" if last is None else ROLES[last.role].value,
            state="connecting" if last is None else "lost",
            error=connection.last_error[:MAX_TEXT_CHARS],
        )
    load = connection.load.reported
    return WorkerRow(
        model=model,
        address=connection.address[:MAX_TEXT_CHARS],
        id=description.worker_id[:MAX_TEXT_CHARS],
        role=ROLES[description.role].value,
        state=state.value,
        kv_used=round(cache_usage(load), 3),
        running=load.num_running,
        waiting=load.num_waiting,
        receiving=load.num_receiving,
        handovers=load.handovers,
        rates=meter.read(description.incarnation, load, now_s),
        tiers=tuple(
            TierRow(tier.name[:MAX_TEXT_CHARS], tier.num_bytes, tier.capacity_bytes) for tier in load.tiers[:MAX_TIERS]
        ),
        experts=_expert_row(load.experts) if load.HasField("experts") else None,
    )


def _expert_row(share: ExpertShare) -> ExpertRow:
    return ExpertRow(
        group=share.group[:MAX_TEXT_CHARS],
        rank=share.rank,
        ranks=share.num_ranks,
        layer=share.layer,
        experts=tuple(share.experts[:MAX_EXPERTS]),
        num_experts=len(share.experts),
        imbalance=round(share.imbalance, 3) if isfinite(share.imbalance) else 0.0,
        rows=share.num_rows,
    )


def pool_rows(rows: Iterable[WorkerRow]) -> list[PoolRow]:
    """Return the pools of these workers, by model and role; workers of no known role are left out."""
    pools: defaultdict[tuple[str, str], list[WorkerRow]] = defaultdict(list)
    for row in rows:
        if row.role:
            pools[row.model, row.role].append(row)
    order = sorted(pools, key=lambda each: (each[0], ROLE_ORDER.index(each[1])))
    return [_pool(model, role, pools[model, role]) for model, role in order]


def _pool(model: str, role: str, workers: Sequence[WorkerRow]) -> PoolRow:
    connected = [each for each in workers if each.state not in ("lost", "connecting")]
    return PoolRow(
        model=model,
        role=role,
        workers=len(workers),
        ready=sum(each.state == "ready" for each in workers),
        draining=sum(each.state in ("draining", "drained") for each in workers),
        kv_used=round(sum(each.kv_used for each in connected) / max(1, len(connected)), 3),
        running=sum(each.running for each in connected),
        waiting=sum(each.waiting for each in connected),
        generated_per_s=round(sum(each.rates.generated for each in connected), 1),
        prefilled_per_s=round(sum(each.rates.prefilled for each in connected), 1),
        tiers=_sums(tier for each in connected for tier in each.tiers),
    )


def _sums(tiers: Iterable[TierRow]) -> tuple[TierRow, ...]:
    """Return the sums by name, the most used first."""
    num_bytes: defaultdict[str, int] = defaultdict(int)
    capacity: defaultdict[str, int] = defaultdict(int)
    for tier in tiers:
        num_bytes[tier.name] += tier.num_bytes
        capacity[tier.name] += tier.capacity_bytes
    names = sorted(num_bytes, key=lambda name: -num_bytes[name])[:MAX_TIERS]
    return tuple(TierRow(name, num_bytes[name], capacity[name]) for name in names)
