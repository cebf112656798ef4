"""Writer of one gRPC call's messages: generation never waits for a slow client."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from google.protobuf.message import Message

from baton.router.admission import unread_output as unread
from baton.router.admission.unread_output import UnreadOutput
from baton.router.errors import SlowClient
from baton.router.generation import CompletionDelta, MergedDeltas

MakeMessage = Callable[[CompletionDelta], Message | None]


class MessageSink(Protocol):
    """Where messages are written: the context of a call."""

    async def write(self, message: Any, /) -> None:
        """Write a message. Waits until gRPC accepts it."""
        ...


class ResponseWriter:
    """Deltas that the client has not read, and the task that writes them.

    A context manager: it fails with SlowClient if the client reads too slowly or leaves too much output unread.
    """

    def __init__(
        self,
        sink: MessageSink,
        total: UnreadOutput,
        request_id: str,
        key: str | None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """`turn`: held for each message, by one of the writers that share the sink; None: there is no other one."""
        self._sink = sink
        self._turn = turn or asyncio.Lock()
        self._total = total
        self._request_id = request_id
        self._share = total.begin(request_id, key, self._over_bound)
        self._merged = MergedDeltas()
        self._num_sending = 0
        self._wake = asyncio.Event()
        self._is_ended = False
        self._slow: SlowClient | None = None
        self._owner: asyncio.Task[object] | None = None
        self._num_cancelling = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "ResponseWriter":
        self._owner = asyncio.current_task()
        assert self._owner is not None
        self._num_cancelling = self._owner.cancelling()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._share.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._slow is not None and self._owner is not None:
            num_cancelling = self._owner.uncancel()
            if num_cancelling <= self._num_cancelling and isinstance(error, asyncio.CancelledError):
                raise self._slow from None

    def begin(self, message: MakeMessage) -> None:
        """Start to write; `message` converts a delta to a message when it is written. None: there is none to write."""
        self._task = asyncio.create_task(self._write(message))

    def add(self, delta: CompletionDelta) -> None:
        """Queue a delta, merged with the waiting ones of its completion."""
        self._merged.add(delta)
        if self._num_sending:
            self._share.update(self._num_sending, self._merged.num_bytes)
        self._wake.set()

    async def finish(self) -> None:
        """Wait until the client has read all."""
        self._is_ended = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def send(self, message: Message) -> None:
        """Write a message that is no delta, behind all of them."""
        await self.finish()
        await self._write_one(message)

    async def _write(self, message: MakeMessage) -> None:
        while not self._is_ended or self._merged.num_bytes:
            await self._wake.wait()
            self._wake.clear()
            for delta in self._merged.take():
                if (response := message(delta)) is not None:
                    await self._write_one(response)

    async def _write_one(self, response: Message) -> None:
        """Write a message in its turn.

        As gRPC reports no progress within it, its timeout is its size at the minimum rate.
        """
        self._num_sending = response.ByteSize()
        self._share.update(self._num_sending, self._merged.num_bytes)
        timeout_s = unread.STALL_S + self._num_sending / unread.LEAST_BYTES_PER_S
        try:
            async with self._turn, asyncio.timeout(timeout_s):
                await self._sink.write(response)
        except TimeoutError:
            self._total.stalled(self._request_id)
            raise self._end(f"the client read the output too slowly for {timeout_s:.0f} s") from None
        self._num_sending = 0
        self._share.update(0, self._merged.num_bytes)

    def _over_bound(self) -> None:
        self._end("the client left too much of the output unread")

    def _end(self, text: str) -> SlowClient:
        if self._slow is None and self._owner is not None:
            self._slow = SlowClient(text)
            self._owner.cancel()
        return self._slow or SlowClient(text)
