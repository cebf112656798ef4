"""The stream between a router and a decode worker."""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.grpc_options import MAX_MESSAGE_BYTES
from baton.rpc.peers import MAX_WORD_CHARS, Context

logger = logging.getLogger(__name__)

MAX_PENDING_BYTES = 64 << 20  # of deltas that a router has not read yet
DELTA_BYTES = 256  # memory overhead of one delta, in addition to its serialized size


@dataclass(slots=True)
class _Pending:
    """Deltas of one message that has not been sent."""

    deltas: list[worker_pb2.RequestDelta] = field(default_factory=list)
    num_bytes: int = 0


class RouterSession:
    """Pending deltas of one router, merged into as few messages as their size allows.

    A router with more than `MAX_PENDING_BYTES` unread loses its session and the session's requests.
    """

    def __init__(self, session_id: str, router_id: str = "") -> None:
        self.session_id = session_id
        self.router_id = router_id
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0  # over all of `_pending`
        self._wake = asyncio.Event()
        self._closed = asyncio.Event()

    def add(self, delta: worker_pb2.RequestDelta) -> None:
        """Queue a delta of one request; no-op once the session is closed."""
        if self._closed.is_set():
            return
        num_bytes = delta.ByteSize() + DELTA_BYTES
        if not self._pending or self._pending[-1].num_bytes + num_bytes > MAX_MESSAGE_BYTES:
            self._pending.append(_Pending())
        last = self._pending[-1]
        last.deltas.append(delta)
        last.num_bytes += num_bytes
        self._pending_bytes += num_bytes
        self._wake.set()
        if self._pending_bytes > MAX_PENDING_BYTES:
            logger.warning("closing session %s: its router does not read its messages", self.session_id)
            self._pending.clear()
            self.close()

    def close(self) -> None:
        """End `messages` after the pending ones."""
        self._closed.set()
        self._wake.set()

    async def wait_closed(self) -> None:
        """Return once the session is closed, even if the router has not read the last message yet."""
        await self._closed.wait()

    async def messages(self) -> AsyncIterator[worker_pb2.WorkerMessage]:
        """Yield the messages to the router until the session is closed."""
        while True:
            await self._wake.wait()
            if self._pending:
                first = self._pending.popleft()
                self._pending_bytes -= first.num_bytes
                yield worker_pb2.WorkerMessage(deltas=first.deltas)
            elif self._closed.is_set():
                return
            else:
                self._wake.clear()


MAX_RECALLS = 1 << 16  # resume keys in one call


class Requests(Protocol):
    """The request handler behind the service: a real decode worker's, or a simulated one's."""

    def submit(self, command: worker_pb2.GenerateCommand, session: RouterSession) -> None:
        """Start a request; its deltas, errors included, go to the session."""
        ...

    def abort(self, request_id: str, session: RouterSession) -> None:
        """Abort a request; no more deltas follow."""
        ...

    def abort_all(self, session: RouterSession) -> None:
        """Abort every request of a session."""
        ...

    def recall(self, resume_key: bytes) -> worker_pb2.RecalledOutput | None:
        """Return the output of a running or remembered request, or None; a running one is aborted."""
        ...


class DecodeService(worker_pb2_grpc.DecodeServicer):
    """The Decode service: one session for each router stream. A session's requests end with it."""

    def __init__(self, requests: Requests, incarnation: str) -> None:
        self._requests = requests
        self._incarnation = incarnation
        self._numbers = itertools.count(1)

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.RouterMessage], context: Context
    ) -> AsyncIterator[worker_pb2.WorkerMessage]:
        """Receive a router's commands and stream its deltas."""
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be a hello")
        elif first.hello.incarnation != self._incarnation:
            text = (
                f"the stream is for incarnation {first.hello.incarnation[:MAX_WORD_CHARS]}; this worker has restarted"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        session = RouterSession(f"{next(self._numbers)}", first.hello.router_id)
        reading = asyncio.create_task(self._read(request_iterator, session))
        ending = asyncio.create_task(self._end_requests(session, reading))
        try:
            yield worker_pb2.WorkerMessage()  # the router may send
            async for message in session.messages():
                yield message
        finally:
            reading.cancel()
            ending.cancel()
            self._requests.abort_all(session)

    async def Recall(  # noqa: N802
        self, request: worker_pb2.RecallRequest, context: Context
    ) -> worker_pb2.RecallResponse:
        """Return the outputs of requests whose client has reconnected to another router."""
        if len(request.resume_keys) > MAX_RECALLS:
            text = f"{len(request.resume_keys)} resume keys exceed the limit of {MAX_RECALLS} in one call"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        outputs = map(self._requests.recall, request.resume_keys)
        return worker_pb2.RecallResponse(outputs=[each for each in outputs if each is not None])

    async def _read(self, messages: AsyncIterator[worker_pb2.RouterMessage], session: RouterSession) -> None:
        try:
            async for message in messages:
                for command in message.generate:
                    self._requests.submit(command, session)
                for abort in message.abort:
                    self._requests.abort(abort.request_id, session)
        finally:
            session.close()

    async def _end_requests(self, session: RouterSession, reading: "asyncio.Task[None]") -> None:
        """Abort the session's requests once it is closed; `Attach` is blocked while the router does not read."""
        await session.wait_closed()
        reading.cancel()
        self._requests.abort_all(session)
