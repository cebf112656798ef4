"""Workers and pools as the console shows them, from the router's connections."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from baton.router.metrics.worker_series import cache_usage
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState

MAX_TEXT_CHARS = 160  # of an id, an address or an error
MAX_TIERS = 6


@dataclass(frozen=True, slots=True)
class TierRow:
    """A store below a worker's KV pool."""

    name: str
    num_bytes: int  # 0: not known
    capacity_bytes: int  # 0: its own affair


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Tokens per second of a worker."""

    generated: float = 0.0
    prefilled: float = 0.0


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
    receiving: int = 0  # of `waiting`: their KV is on its way
    queued_tokens: int = 0
    handovers: int = 0
    rates: TokenRates = TokenRates()
    tiers: tuple[TierRow, ...] = ()

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
class _Counts:
    at_s: float
    generated: int
    prefilled: int


@dataclass(slots=True)
class RateMeter:
    """Token rates of workers between two readings of their counters."""

    _last: dict[str, _Counts] = field(default_factory=dict)  # by incarnation
    _next: dict[str, _Counts] = field(default_factory=dict)

    def read(self, connection: WorkerConnection, now_s: float) -> TokenRates:
        """Return a worker's rates since the last round; zero in its first."""
        assert connection.description is not None
        incarnation, load = connection.description.incarnation, connection.load.reported
        counts = _Counts(now_s, load.num_generated_tokens, load.num_prefilled_tokens)
        last = self._last.get(incarnation, counts)
        self._next[incarnation] = counts
        passed_s = counts.at_s - last.at_s
        if passed_s <= 0:
            return TokenRates()
        generated, prefilled = counts.generated - last.generated, counts.prefilled - last.prefilled
        return TokenRates(round(max(0, generated) / passed_s, 1), round(max(0, prefilled) / passed_s, 1))

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
        queued_tokens=load.num_queued_tokens,
        handovers=load.handovers,
        rates=meter.read(connection, now_s),
        tiers=tuple(
            TierRow(tier.name[:MAX_TEXT_CHARS], tier.num_bytes, tier.capacity_bytes) for tier in load.tiers[:MAX_TIERS]
        ),
    )


def pool_rows(rows: Iterable[WorkerRow]) -> list[PoolRow]:
    """Return the pools of these workers, by model and role; workers of no known role are left out."""
    pools: defaultdict[tuple[str, str], list[WorkerRow]] = defaultdict(list)
    for row in rows:
        if row.role:
            pools[row.model, row.role].append(row)
    return [_pool(model, role, workers) for (model, role), workers in sorted(pools.items())]


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
