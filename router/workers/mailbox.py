"""News of one request between the stream that brings it and the one who waits for it."""

import asyncio
from collections.abc import Callable

from baton.protos.worker_pb2 import RequestDelta


class Mailbox:
    """Holds at most one delta: news that nobody has taken yet merges, so a slow reader costs no queue.

    One reader at a time. A patient reader is given the news up to the first token, and then all others together.
    """

    def __init__(self, patient: bool = False, note_tokens: Callable[[int], None] = lambda _: None) -> None:
        """`note_tokens` hears of all tokens as they come."""
        self._patient = patient
        self._note_tokens = note_tokens
        self._opened = False  # the first token was given
        self._pending: RequestDelta | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: RequestDelta) -> None:
        """Adds news: repeated fields append, the others win over older ones."""
        self._note_tokens(len(delta.token_ids))
        if self._pending is None:
            self._pending = delta
        else:
            self._pending.MergeFrom(delta)
        if not self._waits:
            self._wake()

    def fail(self, error: Exception) -> None:
        """There will be no more news; `get` raises the error once it gave what there was."""
        self._error = error
        self._wake()

    async def get(self) -> RequestDelta:
        """The news since the last call; waits for some."""
        while self._pending is None or self._waits:
            if self._error is not None:
                break
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        delta, self._pending = self._pending, None
        if delta is None:
            assert self._error is not None
            raise self._error
        self._opened = self._opened or bool(delta.token_ids)
        return delta

    @property
    def _waits(self) -> bool:
        """Whether what came is kept back until there is more."""
        return self._patient and self._opened and self._pending is not None and not self._pending.finish_reason

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
