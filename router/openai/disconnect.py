"""A client that goes away ends the work for it."""

import asyncio
from types import TracebackType

from starlette.types import Receive


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


class ClientWatch:
    """A context manager: cancels the task that entered it when the client goes away, and turns that into ClientGone.

    The body must have been read. Servers also report a disconnection after the answer's end: `done` says that it came.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[object] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._num_cancelling = 0
        self._gone = False

    async def __aenter__(self) -> "ClientWatch":
        self._task = asyncio.current_task()
        assert self._task is not None
        self._num_cancelling = self._task.cancelling()
        self._watch = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()
        if self._gone and self._task is not None:
            num_cancelling = self._task.uncancel()
            if num_cancelling <= self._num_cancelling and isinstance(error, asyncio.CancelledError):
                raise ClientGone from None

    def done(self) -> None:
        """Nothing is cancelled any more: the answer is whole."""
        if self._watch is not None:
            self._watch.cancel()

    async def _run(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if self._task is not None:
            self._gone = True
            self._task.cancel()
