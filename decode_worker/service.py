"""The stream between a router and a decode worker."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import grpc

from decode_worker.requests import DecodeRequests
from decode_worker.router_session import RouterSession
from protos import worker_pb2, worker_pb2_grpc
from rpc.peers import Context


class DecodeService(worker_pb2_grpc.DecodeServicer):
    """One session a stream; the requests of a session end with it."""

    def __init__(self, requests: DecodeRequests, incarnation: str) -> None:
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
            text = f"meant for incarnation {first.hello.incarnation}, but this worker is in another life"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
        session = RouterSession(f"{next(self._numbers)}")
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
                if message.HasField("generate"):
                    self._requests.submit(message.generate, session)
                elif message.HasField("abort"):
                    self._requests.abort(message.abort.request_id, session)
        finally:
            session.close()
