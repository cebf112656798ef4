"""The stream between a router and a decode worker."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Protocol

import grpc

from baton.decode_worker.router_session import RouterSession
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import MAX_WORD_CHARS, Context


class Requests(Protocol):
    """Whoever computes what routers ask for: a decode worker's requests, or a simulated one's."""

    def submit(self, command: worker_pb2.GenerateCommand, session: RouterSession) -> None:
        """Takes a request; whatever becomes of it is told over the session."""
        ...

    def abort(self, request_id: str, session: RouterSession) -> None:
        """Ends a request; nothing more is told about it."""
        ...

    def abort_all(self, session: RouterSession) -> None:
        """Ends every request of a session."""
        ...


class DecodeService(worker_pb2_grpc.DecodeServicer):
    """One session a stream; the requests of a session end with it."""

    def __init__(self, requests: Requests, incarnation: str) -> None:
        self._requests = requests
        self._incarnation = incarnation
        self._numbers = itertools.count(1)

    async def Attach(  # noqa: N802
        self, request_iterator: AsyncIterator[worker_pb2.RouterMessage], context: Context
    ) -> AsyncIterator[worker_pb2.WorkerMessage]:
        """Commands in, news out."""
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be a hello")
        elif first.hello.incarnation != self._incarnation:
            text = (
                f"meant for incarnation {first.hello.incarnation[:MAX_WORD_CHARS]}, but this worker is in another life"
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        session = RouterSession(f"{next(self._numbers)}", first.hello.router_id)
        reading = asyncio.create_task(self._read(request_iterator, session))
        try:
            yield worker_pb2.WorkerMessage()  # the router may send
            async for message in session.messages():
                yield message
        finally:
            reading.cancel()
            self._requests.abort_all(session)

    async def _read(self, messages: AsyncIterator[worker_pb2.RouterMessage], session: RouterSession) -> None:
        try:
            async for message in messages:
                for command in message.generate:
                    self._requests.submit(command, session)
                for abort in message.abort:
                    self._requests.abort(abort.request_id, session)
        finally:
            session.close()
