"""Lets peers read what a worker has in its prefix cache."""

import asyncio
import time
from collections.abc import AsyncIterator

import grpc

from baton.engine.kv.block_hash import split_hashes
from baton.kvtransfer.errors import TransferError
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Context, check_peer
from baton.rpc.status import status_of
from baton.worker.announcement import announcements_for
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost


class KVSourceService(worker_pb2_grpc.KVSourceServicer):
    """Pins cached blocks for the life of a call."""

    def __init__(self, host: EngineHost, drain: Drain) -> None:
        self._host = host
        self._drain = drain

    async def Lease(  # noqa: N802
        self, request: worker_pb2.LeaseRequest, context: Context
    ) -> AsyncIterator[worker_pb2.LeaseEvent]:
        """Pins the longest cached run of the given blocks and announces it; the caller ends the call."""
        await check_peer(context, self._host.pool, request.incarnation, request.fingerprint)
        try:
            hashes = split_hashes(request.block_hashes)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"block_hashes: {error}")
        announcements = await announcements_for(context, self._host.ranks, request.num_ranks)
        with self._drain.request():
            pinning = self._host.call(lambda engine: engine.blocks.pin(hashes))
            try:
                _, blocks = await asyncio.shield(pinning)
                accepted = worker_pb2.LeaseAccepted(pools=self._host.ranks.describe(), num_blocks=len(blocks))
                yield worker_pb2.LeaseEvent(accepted=accepted)
                yield worker_pb2.LeaseEvent(blocks=announcements.announce(0, blocks, time.monotonic()))
                while announcements.has_unchecked:
                    yield worker_pb2.LeaseEvent(checksums=await announcements.next_checksums())
                await asyncio.Event().wait()  # ends with the call
            except TransferError as error:  # one of our ranks is gone, or a GPU makes no checksums
                await context.abort(status_of(error).code, str(error))
            finally:
                pinning.add_done_callback(
                    lambda pinned: self._host.call(lambda engine: engine.blocks.unpin(pinned.result()[0]))
                )
