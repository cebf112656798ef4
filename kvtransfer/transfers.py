"""Reads in flight: with a deadline, and in quarantine until they have really ended."""

import asyncio
from collections.abc import Callable, Sequence

from baton.kvtransfer.base import PeerId
from baton.kvtransfer.errors import PeerLost, TransferDeadline, TransferError
from baton.kvtransfer.quarantine import Quarantine


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
