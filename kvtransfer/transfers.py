"""Reads in flight: with a deadline, and in quarantine until they have really ended."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from baton.kvtransfer.base import PeerId
from baton.kvtransfer.errors import PeerLost, TransferDeadline, TransferError
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.threads import run_by


class Transfer:
    """One read in flight, and how to stop it: whoever copies calls `check` between its steps."""

    def __init__(self, peer: PeerId, interrupt: Callable[[], None] | None) -> None:
        self.peer = peer
        self._interrupt = interrupt
        self._reason: TransferError | None = None

    @property
    def is_aborted(self) -> bool:
        """Whether somebody asked it to end."""
        return self._reason is not None

    def abort(self, reason: TransferError) -> None:
        """Asks whoever copies to end with this error; the first reason counts."""
        if self._reason is None:
            self._reason = reason
            if self._interrupt is not None:
                self._interrupt()

    def end(self) -> None:
        """It has ended: what it used may be another transfer's by now, and must not be interrupted any more."""
        self._interrupt = None
        self._reason = None  # it knows the frames where it was raised, which know the transfer; see `threads`

    def check(self) -> None:
        """Raises the reason if the transfer was aborted."""
        if self._reason is not None:
            raise self._reason


class Transfers:
    """The reads of one transport: keeps their destinations in quarantine until they have ended."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine
        self._active: dict[Transfer, asyncio.Future[None]] = {}

    async def run(
        self,
        peer: PeerId,
        local: Sequence[int],
        start: Callable[[Transfer], "asyncio.Future[None]"],
        deadline_s: float,
        interrupt: Callable[[], None] | None = None,
        ended: Callable[[bool], None] | None = None,
    ) -> None:
        """Waits for the copy that `start` starts, and raises what it raises.

        On a deadline or a cancellation this returns at once, calls `interrupt`, which must make the copy end soon, and
        lifts the quarantine when it has. `ended` hears then whether all went well. Both run on the event loop.
        """
        transfer = Transfer(peer, interrupt)
        future = start(transfer)
        self.quarantine.hold(local)
        self._active[transfer] = future

        def finish(done: "asyncio.Future[None]") -> None:
            # The reader may be gone already, and then nobody else takes the error.
            failed = done.cancelled() or done.exception() is not None
            is_clean = not failed and not transfer.is_aborted
            transfer.end()
            del self._active[transfer]
            self.quarantine.release(local)
            if ended is not None:
                ended(is_clean)

        future.add_done_callback(finish)
        try:
            await asyncio.wait({future}, timeout=deadline_s)
        except asyncio.CancelledError:
            transfer.abort(TransferDeadline("the read was cancelled"))
            raise
        if not future.done():
            late = f"{len(local)} blocks from peer {peer} did not come within {deadline_s:.3f} s"
            transfer.abort(TransferDeadline(late))
            raise TransferDeadline(late)
        try:
            future.result()
        finally:
            del future  # its error knows this frame from now on; see `threads`

    def abort(self, peer: PeerId, reason: TransferError) -> None:
        """Aborts the reads from a peer."""
        for transfer in [active for active in self._active if active.peer == peer]:
            transfer.abort(reason)

    async def close(self) -> None:
        """Aborts every read, those too that start meanwhile, and waits until all have ended."""
        while self._active:
            for transfer in list(self._active):
                transfer.abort(PeerLost("the transport was closed"))
            await asyncio.wait(self._active.values())


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


class CopyThreads:
    """Owns a transport's copying threads; they are started as they are needed."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._executor = ThreadPoolExecutor(max_threads, thread_name_prefix=f"baton-kv-{name}")

    def starter(self, copy: Callable[[Transfer], None]) -> Callable[[Transfer], "asyncio.Future[None]"]:
        """What `Transfers.run` needs in order to run `copy` in one of the threads."""

        def run(transfer: Transfer) -> None:
            transfer.check()  # it may have waited long for a thread
            copy(transfer)

        return lambda transfer: run_by(self._executor.submit, partial(run, transfer))

    def close(self) -> None:
        """Ends the threads; none may be copying any more."""
        self._executor.shutdown()
