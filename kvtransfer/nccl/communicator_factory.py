"""Creation and abort of communicators, either of which may hang in the library."""

import asyncio
import logging
from collections.abc import Callable

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
