"""The limit on communicators in a process."""

import asyncio
from collections.abc import Callable, Hashable

from baton.kvtransfer.errors import TransportUnavailable

# Each communicator takes GPU memory and one of the 32 streams that torch has before it hands one out twice. A process
# that both reads and is read has two limits, hence 15 each.
MAX_COMMUNICATORS = 15
IDLE_S = 5.0  # before a communicator may be evicted for another peer


class CommunicatorLimit:
    """The communicators of one side of a process, by peer, with eviction of idle ones; used on one event loop."""

    def __init__(self, max_communicators: int = MAX_COMMUNICATORS) -> None:
        self._max_communicators = max_communicators
        self._evict: dict[Hashable, Callable[[], None]] = {}
        self._idle_since_s: dict[Hashable, float] = {}  # longest idle first

    def acquire(self, peer: Hashable, evict: Callable[[], None]) -> None:
        """Count a communicator with `peer`, which `evict` ends; at the limit, evict the one idle for longest.

        Raises TransportUnavailable if none has been idle for 5 s.
        """
        self.require_room()
        self._evict[peer] = evict

    def mark_busy(self, peer: Hashable) -> None:
        """Protect the peer's communicator from eviction."""
        self._idle_since_s.pop(peer, None)

    def mark_idle(self, peer: Hashable) -> None:
        """Permit the eviction of the peer's communicator after 5 s."""
        if peer in self._evict:
            self._idle_since_s.pop(peer, None)
            self._idle_since_s[peer] = asyncio.get_running_loop().time()

    def release(self, peer: Hashable) -> None:
        """Uncount the peer's communicator; idempotent."""
        self._evict.pop(peer, None)
        self._idle_since_s.pop(peer, None)

    def require_room(self) -> None:
        """Evict the communicator that is idle for longest if the limit is reached; see `acquire`."""
        if len(self._evict) < self._max_communicators:
            return
        peer = next(iter(self._idle_since_s), None)
        if peer is None or asyncio.get_running_loop().time() - self._idle_since_s[peer] < IDLE_S:
            raise TransportUnavailable(f"all {self._max_communicators} communicators are in use")
        evict = self._evict[peer]
        self.release(peer)
        evict()
