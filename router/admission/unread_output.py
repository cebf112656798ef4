"""Output that clients have not taken, and the bounds on it.

Generation does not wait for a slow client: its output is kept in memory, outside of the kernel's buffers. Each request
reports how much that is while its client is behind. The output that is being delivered counts for its key and for the
router. The request's own bound is on what waits behind it, so that one large answer may be sent at once.

Over a request's bound that request ends. Over a key's, the key's request with the most unread output ends; over the
router's, that of the key (or of all requests without a key) that has most.
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

STALL_S = 30.0  # in which a client that is behind must take some, and at the least rate
LEAST_BYTES_PER_S = 1024  # that a client takes while it is behind; one that keeps up with its stream has no least rate


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadLimits:
    """Bounds on unread output in bytes."""

    request_bytes: int
    key_bytes: int
    router_bytes: int


class SlowReason(Enum):
    """Why a request of a slow client was ended."""

    REQUEST = "request"  # over the bound of one request
    KEY = "key"
    ROUTER = "router"
    STALL = "stall"  # the client took too little in the time in which it was behind


class UnreadMetrics:
    """Owns the series of unread output."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        ended = CounterMetric(
            f"{PREFIX}router_slow_clients",
            "Requests ended because their clients did not take their output, by reason.",
            ["model_name", "reason"],
            registry=registry,
        )
        self._ended = {reason: ended.labels(model_name, reason.value) for reason in SlowReason}
        unread = Gauge(
            f"{PREFIX}router_unread_bytes",
            "Output in the router's memory that clients have not taken.",
            ["model_name"],
            registry=registry,
        )
        self._unread = unread.labels(model_name)

    def watch(self, num_bytes: Callable[[], int]) -> None:
        """Read the number of unread bytes from here when it is asked for."""
        self._unread.set_function(num_bytes)

    def ended(self, reason: SlowReason) -> None:
        """Count a request that was ended."""
        self._ended[reason].inc()


class UnreadOutput:
    """Counts the unread output of the requests whose clients are behind, and ends those that have too much."""

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
        """Return the share of a request; `end_request` is called when it must end. `key`: None without an API key."""
        share = UnreadShare(self, request_id, key, end_request)
        self._shares.add(share)
        self._idle.clear()
        return share

    def change(self, share: "UnreadShare", change: int) -> None:
        """Count a change of a share, and end the requests that are over a bound by now."""
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
        """Forget a share that is empty."""
        self._shares.discard(share)
        if not self._key_bytes[share.key]:
            del self._key_bytes[share.key]
        if not self._shares:
            self._idle.set()

    def stalled(self, request_id: str) -> None:
        """Log and count a request that ends because its client took too little in `STALL_S`."""
        logger.warning("%s is ended: its client took too little for %.0f s", request_id, STALL_S)
        self._metrics.ended(SlowReason.STALL)

    async def wait_delivered(self, timeout_s: float) -> bool:
        """Return True once no client is behind, or False after the time-out."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def _end(self, share: "UnreadShare", reason: SlowReason) -> None:
        text = "%s is ended: its client has %d bytes of output to take, over the limit of one %s"
        logger.warning(text, share.request_id, share.num_bytes, reason.value)
        self._metrics.ended(reason)
        share.close()
        share.end_request()


class UnreadShare:
    """One request's part of the unread output. The front end that began it closes it, exactly once or more often."""

    def __init__(self, total: UnreadOutput, request_id: str, key: str | None, end_request: Callable[[], None]) -> None:
        self.request_id = request_id
        self.key = key
        self.end_request = end_request
        self.num_bytes = 0
        self.num_waiting = 0
        self._total = total
        self._is_closed = False

    def update(self, num_sending: int, num_waiting: int) -> None:
        """Set the bytes that are being delivered and those that wait behind them. No-op after `close`."""
        if self._is_closed:
            return
        change = num_sending + num_waiting - self.num_bytes
        self.num_bytes, self.num_waiting = num_sending + num_waiting, num_waiting
        self._total.change(self, change)

    def close(self) -> None:
        """Count nothing any more."""
        if not self._is_closed:
            self.update(0, 0)
            self._is_closed = True
            self._total.remove(self)
