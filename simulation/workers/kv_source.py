"""Lets peers take what a simulated worker has in its prefix cache."""

import asyncio
from collections.abc import AsyncIterator

from baton.engine.kv.block_hash import HASH_BYTES, BlockHash
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Context, check_peer
from baton.simulation.engine.core import EngineCore
from baton.worker.drain import Drain


class SimulatedKVSourceService(worker_pb2_grpc.KVSourceServicer):
    """Pins cached blocks for the life of a call."""

    def __init__(self, core: EngineCore, drain: Drain, description: worker_pb2.WorkerDescription) -> None:
        self._core = core
        self._drain = drain
        self._description = description

    async def Lease(  # noqa: N802
        self, request: worker_pb2.LeaseRequest, context: Context
    ) -> AsyncIterator[worker_pb2.LeaseEvent]:
        """Pins the longest cached run of the given blocks and announces it; the caller ends the call."""
        await check_peer(context, self._description, request.incarnation, request.fingerprint)
        packed = request.block_hashes
        hashes = [BlockHash(packed[i : i + HASH_BYTES]) for i in range(0, len(packed), HASH_BYTES)]
        with self._drain.request():
            pin_id, blocks = self._core.pin(hashes)
            try:
                accepted = worker_pb2.LeaseAccepted(pools=[self._description.pool], num_blocks=len(blocks))
                yield worker_pb2.LeaseEvent(accepted=accepted)
                yield worker_pb2.LeaseEvent(blocks=worker_pb2.BlocksReady(first_index=0, block_ids=blocks))
                await asyncio.Event().wait()  # ends with the call
            finally:
                self._core.unpin(pin_id)
