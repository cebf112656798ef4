"""Creation and abort of communicators, either of which may hang in the library, and the limit on their number."""

import asyncio
import logging
from collections.abc import Callable, Hashable

from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nccl.communicator import PairGroup
from baton.kvtransfer.threads import run_in_thread

logger = logging.getLogger(__name__)

MAX_MAKING = 16  # communicators being created at once, including those whose caller has given up
END_S = 10.0  # to wait for all pending aborts


class CommunicatorFactory:
    """Creates and aborts groups, each on a separate thread; tracks the pending ones."""

    def __init__(self) -> None:
        self._making: set[asyncio.Future[PairGroup]] = set()
        self._ending: set[asyncio.Future[None]] = set()

    def require_room(self) -> None:
        """Raise TransportUnavailable if 16 groups are being created already."""
        if len(self._making) >= MAX_MAKING:
            raise TransportUnavailable(f"{MAX_MAKING} communicators are being created already and make no progress")

    async def make(self, make: Callable[[], PairGroup]) -> PairGroup:
        """Create a group; if the caller is cancelled, the group is aborted once created, however long that takes.

        Raises what `make` raises, and TransportUnavailable if too many are being created.
        """
        self.require_room()
        making = run_in_thread("baton-kv-pair", make)
        self._making.add(making)
        making.add_done_callback(self._making.discard)
        try:
            await asyncio.wait({making})
            return making.result()
        except asyncio.CancelledError:
            making.add_done_callback(self._end_unwanted)
            raise
        finally:
            del making  # its error references this frame; see `threads`

    def end(self, group: PairGroup) -> "asyncio.Future[None]":
        """Start to abort a group; awaiting the future is optional."""
        ending = run_in_thread("baton-kv-pair-end", group.abort)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def all_ended(self) -> None:
        """Wait until all pending aborts have ended, for at most 10 s; log those that hang."""
        if self._ending:
            _, hanging = await asyncio.wait(set(self._ending), timeout=END_S)
            if hanging:
                logger.warning("the abort of %d communicators hangs; they are leaked", len(hanging))

    def _end_unwanted(self, making: "asyncio.Future[PairGroup]") -> None:
        if making.exception() is None:
            self.end(making.result())


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
