"""Communicators that are being made or ended, by libraries that may take for ever over either."""

import asyncio
import logging
from collections.abc import Callable

from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.nccl.communicator import PairGroup
from baton.kvtransfer.threads import run_in_thread

logger = logging.getLogger(__name__)

MAX_MAKING = 16  # at once, with those that nobody waits for any more
END_S = 10.0  # for all that are being ended


class CommunicatorFactory:
    """Makes and ends groups on threads of their own, and knows those that have not come to an end."""

    def __init__(self) -> None:
        self._making: set[asyncio.Future[PairGroup]] = set()
        self._ending: set[asyncio.Future[None]] = set()

    def require_room(self) -> None:
        """Raises TransportUnavailable if too many are being made."""
        if len(self._making) >= MAX_MAKING:
            raise TransportUnavailable(f"{MAX_MAKING} communicators are being made already, and do not get on")

    async def make(self, make: Callable[[], PairGroup]) -> PairGroup:
        """Makes a group; if nobody waits any more it is ended when it is made, however long that takes.

        Raises what `make` raises, and TransportUnavailable if too many are being made.
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
            del making  # its error knows this frame; see `threads`

    def end(self, group: PairGroup) -> "asyncio.Future[None]":
        """Aborts a group; need not be waited for."""
        ending = run_in_thread("baton-kv-pair-end", group.abort)
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def all_ended(self) -> None:
        """Returns when all groups that were to end have ended, or hang."""
        if self._ending:
            _, hanging = await asyncio.wait(set(self._ending), timeout=END_S)
            if hanging:
                logger.warning("%d communicators do not end; they are left behind", len(hanging))

    def _end_unwanted(self, making: "asyncio.Future[PairGroup]") -> None:
        if making.exception() is None:
            self.end(making.result())
