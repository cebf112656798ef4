"""Connected peers of one transport: each with one connection, which ends together with the reads over it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from baton.kvtransfer.base import PeerId
from baton.kvtransfer.errors import PeerLost, TransferDeadline
from baton.kvtransfer.transfers import Transfers

T = TypeVar("T")


class Connections(Generic[T]):
    """Opens one connection a peer, however many ask for it at once, and owns it until it is forgotten or breaks."""

    def __init__(self, deadline_s: float, transfers: Transfers, dispose: Callable[[PeerId, T], None]) -> None:
        """`transfers`: the reads over these connections; `dispose`: closes one that is no peer's any more."""
        self._deadline_s = deadline_s
        self._transfers = transfers
        self._dispose = dispose
        self._open: dict[PeerId, T] = {}
        self._opening: dict[PeerId, asyncio.Task[T]] = {}
        self._is_closed = False

    async def ensure(self, peer: PeerId, connect: Callable[[], Awaitable[T]]) -> T:
        """The connection to a peer, made by `connect` if there is none.

        Raises TransferDeadline, or PeerLost once this is closed.
        """
        if self._is_closed:
            raise PeerLost(f"peer {peer} cannot be connected: the transport was closed")
        if peer in self._open:
            return self._open[peer]
        opening = self._opening.get(peer) or self._begin(peer, connect)
        try:
            return await asyncio.shield(opening)  # others may wait for the same connection
        except asyncio.CancelledError:
            if opening.cancelled() and not _is_being_cancelled():
                raise PeerLost(f"peer {peer} was forgotten while it was being connected") from None
            raise
        finally:
            del opening  # its error knows this frame from now on; see `threads`

    def _begin(self, peer: PeerId, connect: Callable[[], Awaitable[T]]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(self._connect(peer, connect))
        self._opening[peer] = task
        task.add_done_callback(lambda done: self._opened(peer, done))
        return task

    async def _connect(self, peer: PeerId, connect: Callable[[], Awaitable[T]]) -> T:
        with suppress(TimeoutError):  # its frames know this task, which will know the error; see `threads`
            async with asyncio.timeout(self._deadline_s):
                connection = await connect()
                self._open[peer] = connection
                return connection
        raise TransferDeadline(f"peer {peer} did not answer within {self._deadline_s} s")

    def _opened(self, peer: PeerId, task: "asyncio.Task[T]") -> None:
        self._opening.pop(peer, None)
        if not task.cancelled():
            task.exception()  # whoever waited has it; if all were cancelled, nobody wants it

    def get(self, peer: PeerId) -> T:
        """The open connection to a peer. Raises PeerLost if there is none."""
        try:
            return self._open[peer]
        except KeyError:
            raise PeerLost(f"peer {peer} is not connected") from None

    def is_current(self, peer: PeerId, connection: T) -> bool:
        """Whether this is still the connection to the peer."""
        return self._open.get(peer) is connection

    def forget(self, peer: PeerId) -> None:
        """Ends the connection to a peer, if there is or will be one, and the reads over it."""
        self._drop(peer, PeerLost(f"peer {peer} was forgotten"))

    def lose(self, peer: PeerId, connection: T) -> None:
        """This connection broke. If it is the peer's, it ends, and so do the reads over it."""
        if self.is_current(peer, connection):
            self._drop(peer, PeerLost(f"peer {peer} ended"))

    def _drop(self, peer: PeerId, reason: PeerLost) -> None:
        if peer in self._opening:
            self._opening[peer].cancel()
        connection = self._open.pop(peer, None)
        self._transfers.abort(peer, reason)
        if connection is not None:
            self._dispose(peer, connection)

    def peers(self) -> list[PeerId]:
        """Connected peers."""
        return list(self._open)

    async def close(self) -> None:
        """Stops connecting, forgets every peer, and lets go of whose `dispose` it is; the last call."""
        self._is_closed = True
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self.peers():  # no read can start from now on
            self.forget(peer)
        self._dispose = _keep  # the transport, which has us, goes without a pass of the garbage collector


def _keep(_peer: PeerId, _connection: object) -> None:
    """There is none left."""


def _is_being_cancelled() -> bool:
    """Whether somebody cancels the task that calls this."""
    caller = asyncio.current_task()
    return caller is not None and caller.cancelling() > 0
