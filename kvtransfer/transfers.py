"""Reads in flight, and the threads that copy."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from baton.kvtransfer.base import Landed, PeerId, ignore_landed
from baton.kvtransfer.errors import TransferDeadline, TransferError
from baton.kvtransfer.threads import run_by


class Transfer:
    """One read in flight that can be aborted: the copying code calls `check` between its steps.

    The code that starts the copy may set `interrupt`, which must make it end soon, and `ended`, which is called with
    True if the copy succeeded. Both run on the event loop.
    """

    def __init__(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = ignore_landed,
    ) -> None:
        self.peer = peer
        self.remote = remote
        self.local = local
        self.deadline_s = deadline_s
        self.landed = landed
        self.interrupt: Callable[[], object] | None = None
        self.ended: Callable[[bool], None] | None = None
        self._reason: TransferError | None = None

    def abort(self, reason: TransferError) -> None:
        """Make the copying code end with this error; later reasons are ignored."""
        if self._reason is None:
            self._reason = reason
            if self.interrupt is not None:
                self.interrupt()

    def check(self) -> None:
        """Raise the reason if the transfer was aborted."""
        if self._reason is not None:
            raise self._reason

    async def finish(self, copying: "asyncio.Future[None]", released: Callable[[], None]) -> None:
        """Wait for the copy and raise what it raises; at the deadline or a cancellation abort it and raise at once.

        `released` is called once the copy has ended, when no write can land any more.
        """
        copying.add_done_callback(lambda done: self._end(done, released))
        try:
            await asyncio.wait({copying}, timeout=self.deadline_s)
        except asyncio.CancelledError:
            self.abort(TransferDeadline("the read was cancelled"))
            raise
        if not copying.done():
            late = f"{len(self.local)} blocks from peer {self.peer} did not arrive within {self.deadline_s:.3f} s"
            self.abort(TransferDeadline(late))
            raise TransferDeadline(late)
        try:
            copying.result()
        finally:
            del copying  # its error references this frame from now on; see `threads`

    def _end(self, copying: "asyncio.Future[None]", released: Callable[[], None]) -> None:
        # The caller may not wait any more; then the error must be retrieved here.
        failed = copying.cancelled() or copying.exception() is not None
        is_clean, ended = not failed and self._reason is None, self.ended
        # The connection may serve another transfer from now on, and must not be interrupted any more. The reason
        # references the frames where it was raised, which reference the transfer; see `threads`.
        self.interrupt = self.ended = self._reason = None
        if ended is not None:
            ended(is_clean)
        released()


class CopyThreads:
    """A transport's pool of copying threads, started on demand."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._executor = ThreadPoolExecutor(max_threads, thread_name_prefix=f"baton-kv-{name}")

    def run(self, transfer: Transfer, copy: Callable[[], None]) -> "asyncio.Future[None]":
        """Run `copy` in one of the threads, unless the transfer is aborted while it waits for the thread."""

        def run() -> None:
            transfer.check()
            copy()

        return run_by(self._executor.submit, run)

    def close(self) -> None:
        """End the threads; no copy may be running."""
        self._executor.shutdown()
