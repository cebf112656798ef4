"""A prefill worker that misbehaves by script, over real gRPC and a real transport."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import torch

from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.checksum.block_checksum import block_checksums
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.process.progress import HEARTBEAT_S
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.pool_description import pool_to_proto

NUM_BLOCKS = 32
Script = Callable[["Prefilled"], AsyncIterator[worker_pb2.PrefillEvent]]


@dataclass(frozen=True)
class Prefilled:
    """The inputs of a script: a prompt, and a pool of random bytes in place of its KV."""

    request: worker_pb2.PrefillRequest
    pool: torch.Tensor
    description: worker_pb2.KVPool

    def accepted(self) -> worker_pb2.PrefillEvent:
        """Return the event that accepts the prompt."""
        return worker_pb2.PrefillEvent(accepted=worker_pb2.PrefillAccepted(pools=[self.description]))

    def blocks(self, first_index: int, ids: list[int], checksum_error: int = 0) -> worker_pb2.PrefillEvent:
        """Return an announcement of blocks, with checksums off by `checksum_error`."""
        checksums = [each ^ checksum_error for each in block_checksums(self.pool, ids)]
        return worker_pb2.PrefillEvent(
            blocks=worker_pb2.BlocksReady(first_index=first_index, block_ids=ids),
            checksums=worker_pb2.BlockChecksums(first_index=first_index, checksums=checksums),
        )


async def accept_only(prefilled: Prefilled) -> AsyncIterator[worker_pb2.PrefillEvent]:
    """Accept the prompt, and send only keep-alives after that."""
    yield prefilled.accepted()
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        yield worker_pb2.PrefillEvent()


class ScriptedPrefill(worker_pb2_grpc.PrefillServicer):
    """A prefill service that runs the script for every call."""

    def __init__(self, pool: torch.Tensor, description: worker_pb2.KVPool, script: Script) -> None:
        self._pool = pool
        self._description = description
        self._script = script
        self.began = asyncio.Event()  # a call has arrived
        self.ended = asyncio.Event()

    async def Prefill(  # noqa: N802
        self, request: worker_pb2.PrefillRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[worker_pb2.PrefillEvent]:
        """Run the script, then hold the lease."""
        self.began.set()
        try:
            async for event in self._script(Prefilled(request, self._pool, self._description)):
                yield event
        finally:
            self.ended.set()


@asynccontextmanager
async def scripted_prefill(
    decode: worker_pb2.WorkerDescription, script: Script, fingerprint: str | None = None
) -> AsyncIterator[tuple[worker_pb2.PeerWorker, ScriptedPrefill]]:
    """Serve the script; yield the PeerWorker for a plan."""
    memory = SharedPool()
    pool = memory.allocate((NUM_BLOCKS, decode.pool.block_bytes), torch.uint8)
    pool.random_(0, 255)
    identity = PoolIdentity(uuid.uuid4().hex, fingerprint or decode.fingerprint)
    transport = create_transport("shared_memory", identity, memory, "127.0.0.1")
    service = ScriptedPrefill(pool, pool_to_proto(transport.register_pool(pool)), script)
    server = grpc.aio.server()
    worker_pb2_grpc.add_PrefillServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield (
            worker_pb2.PeerWorker(worker_id="scripted", address=f"127.0.0.1:{port}", incarnation=identity.incarnation),
            service,
        )
    finally:
        await server.stop(None)
        await transport.close()
        memory.close()
