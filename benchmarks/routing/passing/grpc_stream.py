"""Pass-through in front of Baton's workers: `python -m benchmarks.routing.passing.grpc_stream PORT WORKERS`.

Prepared commands go to the workers round-robin over the router's stream protocol. Responses are only matched to their
requests.
"""

import asyncio
import gc
import sys
from itertools import cycle

import uvloop
from grpc.aio import StreamStreamCall

from baton.protos import worker_pb2
from baton.protos.worker_pb2 import DescribeRequest, Hello, RouterMessage, WorkerMessage
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.rpc.tls import Plaintext
from benchmarks.routing.passing.server import PassedRequest, serve_passing

ATTACH = f"/{worker_pb2.DESCRIPTOR.services_by_name['Decode'].full_name}/Attach"


class PassStream:
    """Stream to one worker, and its in-flight requests."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._waiting: dict[str, PassedRequest] = {}
        self._outgoing: list[bytes] = []
        self._wake = asyncio.Event()

    def forward(self, request_id: bytes, message: bytes, request: PassedRequest) -> None:
        """Send a prepared message."""
        self._waiting[request_id.decode()] = request
        self._outgoing.append(message)
        self._wake.set()

    async def run(self) -> None:
        """Run until the worker disconnects."""
        async with Plaintext().channel(self._address) as channel:
            described = await WorkerStub(channel).Describe(DescribeRequest())
            attach = channel.stream_stream(ATTACH, None, WorkerMessage.FromString)
            call = attach()  # type: ignore[call-arg]  # the stubs lack the default: we write by hand
            hello = Hello(router_id="pass", incarnation=described.incarnation)
            await call.write(RouterMessage(hello=hello).SerializeToString())
            writing = asyncio.create_task(self._write(call))
            try:
                async for message in call:
                    for delta in message.deltas:
                        is_last = bool(delta.finish_reason)
                        waiting = self._waiting
                        request = waiting.pop(delta.request_id) if is_last else waiting[delta.request_id]
                        request.on_output(is_last)
            finally:
                writing.cancel()

    async def _write(self, call: StreamStreamCall[bytes, WorkerMessage]) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outgoing:
                outgoing, self._outgoing = self._outgoing, []
                await call.write(b"".join(outgoing))  # concatenated protobuf messages are one merged message


async def main(port: int, addresses: list[str]) -> None:
    """Serve until terminated."""
    streams = [PassStream(address) for address in addresses]
    turns = cycle(streams)
    gc.disable()
    async with asyncio.TaskGroup() as tasks:
        for stream in streams:
            tasks.create_task(stream.run())
        tasks.create_task(serve_passing(port, lambda *passed: next(turns).forward(*passed)))


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2].split(",")))
