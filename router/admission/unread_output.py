"""Output that clients have not read, and the bounds on it.

Generation does not wait for a slow client: the router buffers its output in memory, beyond the kernel's buffers. Each
request reports its buffered bytes while its client lags. The output that is being delivered counts towards the bounds
of the key and the router. The bound of the request covers only the output after it, so one large response may be sent
at once.

A request that exceeds its own bound is aborted. If a key exceeds its bound, its request with the most unread output is
aborted. If the router exceeds its bound, the request with the most unread output is aborted of the key (or of all
requests without a key) that has the most.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as CounterMetric

from baton.router.metrics.metrics import PREFIX

logger = logging.getLogger(__name__)

STALL_S = 30.0  # time in which a lagging client must read something, at the minimum rate or faster
LEAST_BYTES_PER_S = 1024  # minimum rate of a lagging client; a client that keeps up has no minimum


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadLimits:
    """Bounds on unread output in bytes."""

    request_bytes: int
    key_bytes: int
    router_bytes: int


class SlowReason(Enum):
    """Why a request of a slow client was aborted."""

    REQUEST = "request"  # over the bound of one request
    KEY = "key"
    ROUTER = "router"
    STALL = "stall"  # the client read too slowly while it lagged


class UnreadMetrics:
    """Metrics of unread output."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        ended = CounterMetric(
            f"{PREFIX}router_slow_clients",
            "Requests aborted because their clients did not read their output, by reason.",
            ["model_name", "reason"],
            registry=registry,
        )
        self._ended = {reason: ended.labels(model_name, reason.value) for reason in SlowReason}
        unread = Gauge(
            f"{PREFIX}router_unread_bytes",
            "Bytes of output in the router's memory that clients have not read.",
            ["model_name"],
            registry=registry,
        )
        self._unread = unread.labels(model_name)

    def watch(self, num_bytes: Callable[[], int]) -> None:
        """Export the number of unread bytes from this callback."""
        self._unread.set_function(num_bytes)

    def ended(self, reason: SlowReason) -> None:
        """Count a request that was aborted."""
        self._ended[reason].inc()


class UnreadOutput:
    """Byte counts of unread output of lagging clients; aborts the requests with too much of it."""

    def __init__(self, limits: UnreadLimits, metrics: UnreadMetrics) -> None:
        self.num_bytes = 0
        self._metrics = metrics
        self._limits = limits
        self._key_bytes: Counter[str | None] = Counter()
        self._shares: set[UnreadShare] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        metrics.watch(lambda: self.num_bytes)

    def begin(self, request_id: str, key: str | None, end_request: Callable[[], None]) -> "UnreadShare":
        """Return the share of a request. `end_request` is called to abort it. `key`: None without an API key."""
        share = UnreadShare(self, request_id, key, end_request)
        self._shares.add(share)
        self._idle.clear()
        return share

    def change(self, share: "UnreadShare", change: int) -> None:
        """Count a change of a share, and abort the requests that exceed a bound now."""
        self.num_bytes += change
        self._key_bytes[share.key] += change
        limits = self._limits
        if share.num_waiting > limits.request_bytes:
            self._end(share, SlowReason.REQUEST)
        while share.key is not None and self._key_bytes[share.key] > limits.key_bytes:
            shares = (each for each in self._shares if each.key == share.key)
            self._end(max(shares, key=lambda each: each.num_bytes), SlowReason.KEY)
        while self.num_bytes > limits.router_bytes:
            most = max(self._shares, key=lambda each: (self._key_bytes[each.key], each.num_bytes))
            self._end(most, SlowReason.ROUTER)

    def remove(self, share: "UnreadShare") -> None:
        """Remove an empty share."""
        self._shares.discard(share)
        if not self._key_bytes[share.key]:
            del self._key_bytes[share.key]
        if not self._shares:
            self._idle.set()

    def stalled(self, request_id: str) -> None:
        """Log and count a request that is aborted because its client read too slowly for `STALL_S`."""
        logger.warning("%s is aborted: its client read too slowly for %.0f s", request_id, STALL_S)
        self._metrics.ended(SlowReason.STALL)

    async def wait_delivered(self, timeout_s: float) -> bool:
        """Return True once no client lags, False after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _end(self, share: "UnreadShare", reason: SlowReason) -> None:
        text = "%s is aborted: its client has not read %d bytes of output, over the limit of one %s"
        logger.warning(text, share.request_id, share.num_bytes, reason.value)
        self._metrics.ended(reason)
        share.close()
        share.end_request()


class UnreadShare:
    """One request's share of the unread output. The front end that began it closes it; `close` is idempotent."""

    def __init__(self, total: UnreadOutput, request_id: str, key: str | None, end_request: Callable[[], None]) -> None:
        self.request_id = request_id
        self.key = key
        self.end_request = end_request
        self.num_bytes = 0
        self.num_waiting = 0
        self._total = total
        self._is_closed = False

    def update(self, num_sending: int, num_waiting: int) -> None:
        """Set the bytes that are being delivered and those queued after them. No-op after `close`."""
        if self._is_closed:
            return
        change = num_sending + num_waiting - self.num_bytes
        self.num_bytes, self.num_waiting = num_sending + num_waiting, num_waiting
        self._total.change(self, change)

    def close(self) -> None:
        """Remove the share from all counts."""
        if not self._is_closed:
            self.update(0, 0)
            self._is_closed = True
            self._total.remove(self)
