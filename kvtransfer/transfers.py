"""Reads in flight, with deadlines and with their destination in quarantine until they have really ended."""

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
    """One read in flight that can be aborted: the copying code calls `check` between its steps."""

    def __init__(self, peer: PeerId, interrupt: Callable[[], None] | None) -> None:
        self.peer = peer
        self._interrupt = interrupt
        self._reason: TransferError | None = None

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._reason is not None

    def abort(self, reason: TransferError) -> None:
        """Make the copying code end with this error; later reasons are ignored."""
        if self._reason is None:
            self._reason = reason
            if self._interrupt is not None:
                self._interrupt()

    def end(self) -> None:
        """Mark as ended: its connection may serve another transfer by now and must not be interrupted any more."""
        self._interrupt = None
        self._reason = None  # references the frames where it was raised, which reference the transfer; see `threads`

    def check(self) -> None:
        """Raise the reason if the transfer was aborted."""
        if self._reason is not None:
            raise self._reason


class Transfers:
    """The reads in flight of one transport; their destinations stay in quarantine until they have ended."""

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
        """Start a copy with `start`, wait for it and raise what it raises; `local`: block ids to quarantine.

        On a deadline or a cancellation this calls `interrupt`, which must make the copy end soon, and raises at once.
        The quarantine is lifted when the copy has ended; then `ended` is called with True if it succeeded. Both
        callbacks run on the event loop.
        """
        transfer = Transfer(peer, interrupt)
        future = start(transfer)
        self.quarantine.hold(local)
        self._active[transfer] = future

        def finish(done: "asyncio.Future[None]") -> None:
            # The caller may not wait any more; then the error must be retrieved here.
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
            late = f"{len(local)} blocks from peer {peer} did not arrive within {deadline_s:.3f} s"
            transfer.abort(TransferDeadline(late))
            raise TransferDeadline(late)
        try:
            future.result()
        finally:
            del future  # its error references this frame from now on; see `threads`

    def abort(self, peer: PeerId, reason: TransferError) -> None:
        """Abort all reads from a peer with the given error."""
        for transfer in [active for active in self._active if active.peer == peer]:
            transfer.abort(reason)

    async def close(self) -> None:
        """Abort every read, including those that start meanwhile, and wait until all have ended."""
        while self._active:
            for transfer in list(self._active):
                transfer.abort(PeerLost("the transport was closed"))
            await asyncio.wait(self._active.values())


T = TypeVar("T")


class Connections(Generic[T]):
    """One connection per peer, however many callers request it at once; owned until it is forgotten or breaks."""

    def __init__(self, deadline_s: float, transfers: Transfers, dispose: Callable[[PeerId, T], None]) -> None:
        """`deadline_s`: for connecting; `transfers`: the reads over these connections; `dispose`: closes one."""
        self._deadline_s = deadline_s
        self._transfers = transfers
        self._dispose = dispose
        self._open: dict[PeerId, T] = {}
        self._opening: dict[PeerId, asyncio.Task[T]] = {}
        self._is_closed = False

    async def ensure(self, peer: PeerId, connect: Callable[[], Awaitable[T]]) -> T:
        """Return the connection to a peer, opened by `connect` if there is none.

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
            del opening  # its error references this frame from now on; see `threads`

    def _begin(self, peer: PeerId, connect: Callable[[], Awaitable[T]]) -> "asyncio.Task[T]":
        task = asyncio.get_running_loop().create_task(self._connect(peer, connect))
        self._opening[peer] = task
        task.add_done_callback(lambda done: self._opened(peer, done))
        return task

    async def _connect(self, peer: PeerId, connect: Callable[[], Awaitable[T]]) -> T:
        with suppress(TimeoutError):  # its frames reference this task, which will hold the error; see `threads`
            async with asyncio.timeout(self._deadline_s):
                connection = await connect()
                self._open[peer] = connection
                return connection
        raise TransferDeadline(f"peer {peer} did not respond within {self._deadline_s} s")

    def _opened(self, peer: PeerId, task: "asyncio.Task[T]") -> None:
        self._opening.pop(peer, None)
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it if all waiters were cancelled

    def get(self, peer: PeerId) -> T:
        """Return the open connection to a peer. Raises PeerLost if there is none."""
        try:
            return self._open[peer]
        except KeyError:
            raise PeerLost(f"peer {peer} is not connected") from None

    def is_current(self, peer: PeerId, connection: T) -> bool:
        """Return whether this is still the connection to the peer."""
        return self._open.get(peer) is connection

    def forget(self, peer: PeerId) -> None:
        """Close the connection to a peer, open or being opened, and abort the reads over it."""
        self._drop(peer, PeerLost(f"peer {peer} was forgotten"))

    def lose(self, peer: PeerId, connection: T) -> None:
        """Handle a broken connection: if it is still the peer's, close it and abort the reads over it."""
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
        """Return the connected peers."""
        return list(self._open)

    async def close(self) -> None:
        """Stop connecting, forget every peer, and drop the reference to the owner of `dispose`; the last call."""
        self._is_closed = True
        tasks = list(self._opening.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer in self.peers():  # no read can start from now on
            self.forget(peer)
        self._dispose = _dispose_nothing  # breaks the reference cycle with the transport, which owns us


def _dispose_nothing(_peer: PeerId, _connection: object) -> None:
    """Replace `dispose` once no connection is left."""


def _is_being_cancelled() -> bool:
    """Return whether the current task is being cancelled."""
    caller = asyncio.current_task()
    return caller is not None and caller.cancelling() > 0


class CopyThreads:
    """A transport's pool of copying threads, started on demand."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._executor = ThreadPoolExecutor(max_threads, thread_name_prefix=f"baton-kv-{name}")

    def starter(self, copy: Callable[[Transfer], None]) -> Callable[[Transfer], "asyncio.Future[None]"]:
        """Return the `start` for `Transfers.run` that runs `copy` in one of the threads."""

        def run(transfer: Transfer) -> None:
            transfer.check()  # it may have been aborted while it waited for a thread
            copy(transfer)

        return lambda transfer: run_by(self._executor.submit, partial(run, transfer))

    def close(self) -> None:
        """End the threads; no copy may be running."""
        self._executor.shutdown()
