"""Prefix pulls: a prefill or decode worker reads a cached prefix from another worker instead of computing it."""

import asyncio
import logging

import grpc

from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.errors import ChecksumMismatch, PeerRefused, TransferError
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Channels, next_event
from baton.worker.base import Host, KVReceive
from baton.worker.kv.origins import ReceivedOrigins
from baton.worker.reporting import WorkerCounters

logger = logging.getLogger(__name__)

LeaseCall = grpc.aio.UnaryStreamCall[worker_pb2.LeaseRequest, worker_pb2.LeaseEvent]


class PrefixPull:
    """One read of a request's first blocks from another worker's cache, under a lease."""

    def __init__(self, host: Host, request: Request, source: worker_pb2.PeerWorker, deadline_s: float) -> None:
        block_size = host.config.block_size
        num_full_blocks = (request.num_tokens - 1) // block_size  # at least one token is left to compute
        self._host = host
        self._source = source
        self._deadline_s = deadline_s
        self._hashes = request.block_hashes[:num_full_blocks]
        self._tables = [table[:num_full_blocks] for table in request.block_tables]
        self._state = list(request.state_blocks)
        self._num_known = request.num_computed_tokens // block_size  # blocks of each KV group
        self._order = host.kv_groups.transfer_order(0)  # of the leased prefix
        self._origins = ReceivedOrigins(host.origin, (), 0)
        self._receiver: KVReceive | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens whose KV is complete and checked, including those known from the start."""
        num_blocks = self._receiver.num_blocks_received if self._receiver else 0
        return self._order.num_usable(num_blocks, self._num_known) * self._host.config.block_size

    @property
    def num_pulled_tokens(self) -> int:
        """Tokens of `num_tokens` that were pulled."""
        return self.num_tokens - self._num_known * self._host.config.block_size

    async def run(self, channels: Channels) -> None:
        """Return when all leased blocks are received and checked. Raises AioRpcError or TransferError."""
        lease = worker_pb2.LeaseRequest(
            block_hashes=b"".join(self._hashes),
            incarnation=self._source.incarnation,
            fingerprint=self._host.fingerprint,
            num_ranks=self._host.ranks.size,
            handed_off=self._source.handed_off,
        )
        call: LeaseCall = worker_pb2_grpc.KVSourceStub(channels.get(self._source.address)).Lease(lease)
        try:
            await self._receive(call)
        finally:
            call.cancel()

    def outcome(self, task: "asyncio.Task[None]", counters: WorkerCounters) -> Received:
        """Return what was received. A failure is logged and counted; only the missing blocks must be computed."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, grpc.aio.AioRpcError | TransferError):
            logger.warning("pulling a prefix from %s failed: %s", self._source.worker_id, error)
        elif error is not None:
            logger.error("pulling a prefix from %s failed", self._source.worker_id, exc_info=error)
        counters.handover_failures += error is not None
        counters.checksum_failures += isinstance(error, ChecksumMismatch)
        num_known = self._order.num_before(self._num_known)
        num_read = self._receiver.num_blocks_received - num_known if self._receiver is not None else 0
        num_bytes = num_read * self._host.block_bytes
        counters.handover_bytes += num_bytes
        counters.reads.note(num_bytes, self._receiver.transfer_s if self._receiver is not None else 0.0)
        return Received(self.num_tokens, origins=self._origins.by_block)

    async def _receive(self, call: LeaseCall) -> None:
        # The source computes nothing and sends no keep-alives, so the deadline bounds each wait.
        while event := await next_event(call, self._source.worker_id, self._deadline_s):
            if event.HasField("accepted"):
                if self._receiver is not None:
                    raise PeerRefused("the peer accepted twice")
                if event.accepted.num_blocks <= self._num_known:
                    return None
                if event.accepted.num_blocks > len(self._hashes):
                    raise PeerRefused(f"the peer leased {event.accepted.num_blocks} of {len(self._hashes)} blocks")
                block_size = self._host.config.block_size
                order = self._order = self._host.kv_groups.transfer_order(event.accepted.num_blocks * block_size)
                blocks = order.blocks(self._tables, state=self._state)
                num_known = order.num_before(self._num_known)
                self._origins = ReceivedOrigins(self._host.origin, blocks, num_known)
                self._receiver = await self._host.ranks.receive(
                    event.accepted.pools, blocks, num_known, self._deadline_s
                )
            elif self._receiver is None:
                raise PeerRefused("the peer announced blocks before it accepted")
            elif event.HasField("blocks"):
                self._origins.note(event.blocks)
                await self._receiver.read(event.blocks.first_index, event.blocks.block_ids)
            else:
                self._receiver.expect(event.checksums.first_index, event.checksums.checksums)
            receiver = self._receiver
            if min(receiver.num_blocks_read, receiver.num_blocks_expected) >= self._order.num_blocks:
                return await receiver.settled()
        raise PeerRefused("the peer ended the call before it had announced all leased blocks")
