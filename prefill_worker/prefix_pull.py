"""Pulls a prefix that another worker has in its cache, instead of computing it."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from engine.request import Request
from kvtransfer.errors import ChecksumMismatch, PeerRefused, TransferError
from kvtransfer.receiver import BlockReceiver
from protos import worker_pb2, worker_pb2_grpc
from rpc.engine_host import EngineHost
from rpc.peers import Channels
from rpc.pool_description import pool_from_proto
from rpc.worker_counters import WorkerCounters

logger = logging.getLogger(__name__)

LeaseCall = grpc.aio.UnaryStreamCall[worker_pb2.LeaseRequest, worker_pb2.LeaseEvent]


@dataclass(slots=True)
class PullProgress:
    """How far a pull has come; what is counted here is whole and checked, whatever fails later."""

    num_blocks: int


class PrefixPuller:
    """Reads cached blocks of other workers, decode workers included, under a lease at their side."""

    def __init__(self, host: EngineHost, channels: Channels, counters: WorkerCounters, deadline_s: float) -> None:
        self._host = host
        self._channels = channels
        self._counters = counters
        self._deadline_s = deadline_s

    async def pull(self, request: Request, source: worker_pb2.PeerWorker) -> int:
        """Fills the request's blocks behind its computed tokens from the source's cache, as far as that has them.

        Returns the number of tokens whose KV is here then. A failure is logged and counted, and costs only what did
        not come. It returns, or ends as cancelled, only when nothing can be written into the blocks any more.
        """
        block_size = self._host.config.block_size
        num_full_blocks = (request.num_tokens - 1) // block_size  # one token at least is left to compute
        lease = worker_pb2.LeaseRequest(
            block_hashes=b"".join(request.block_hashes[:num_full_blocks]),
            incarnation=source.incarnation,
            fingerprint=self._host.fingerprint,
        )
        call: LeaseCall = worker_pb2_grpc.KVSourceStub(self._channels.get(source.address)).Lease(lease)
        num_known = request.num_computed_tokens // block_size
        progress = PullProgress(num_known)
        try:
            await self._receive(call, request.block_table[:num_full_blocks], progress)
        except (grpc.aio.AioRpcError, TransferError) as error:
            self._counters.handover_failures += 1
            self._counters.checksum_failures += isinstance(error, ChecksumMismatch)
            logger.warning("pulling a prefix from %s failed: %s", source.worker_id, error)
        finally:
            call.cancel()
            await asyncio.shield(self._host.transport.quarantine.wait_clear(request.block_table))
        self._counters.handover_bytes += (progress.num_blocks - num_known) * self._host.block_bytes
        return progress.num_blocks * block_size

    async def _receive(self, call: LeaseCall, block_table: Sequence[int], progress: PullProgress) -> None:
        receiver: BlockReceiver | None = None
        num_leased = 0
        async for event in call:
            if event.HasField("accepted"):
                num_leased = event.accepted.num_blocks
                peer = await self._host.transport.connect(pool_from_proto(event.accepted.pool))
                receiver = BlockReceiver(
                    self._host.transport,
                    peer,
                    self._host.pool_tensor,
                    block_table,
                    self._deadline_s,
                    progress.num_blocks,
                )
            elif receiver is None:
                raise PeerRefused("the peer announced blocks before it accepted")
            else:
                await receiver.receive(event.blocks.first_index, event.blocks.block_ids, event.blocks.checksums)
                progress.num_blocks = receiver.num_blocks_received
            if progress.num_blocks >= num_leased:
                return
