"""The KVSource service: leases with which peers read a worker's prefix cache."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import grpc

from baton.engine.errors import EngineEnded
from baton.engine.kv.block_hash import HASH_BYTES, split_hashes
from baton.engine.kv.origin import NO_ORIGINS, KVOrigin
from baton.engine.kv.pin import Pin
from baton.engine.request import BlockId
from baton.kvtransfer.errors import TransferError
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Context, check_peer
from baton.rpc.status import status_of
from baton.worker.base import Host, KVPools
from baton.worker.drain import Drain
from baton.worker.kv.origins import origins_to_proto

PIECE_BYTES = 32 << 20  # bytes of blocks whose checksums go in one message


@dataclass(frozen=True, slots=True)
class Piece:
    """Announced blocks whose checksums have not been sent."""

    first_index: int
    blocks: Sequence[BlockId]


class Announcements:
    """Announcements of computed blocks: block ids at once, checksums while the peer reads."""

    def __init__(self, ranks: KVPools, num_readers: int, own: KVOrigin | None = None) -> None:
        """num_readers: ranks of the peer. own: this worker's model, named with each block; None: peers have the same.

        Raises ValueError if blocks cannot be divided among that many ranks.
        """
        self._ranks = ranks
        self._own = own
        self._units_per_block = ranks.units_for(num_readers)
        self._piece = max(1, PIECE_BYTES // ranks.block_bytes)
        self._unchecked: deque[Piece] = deque()

    def announce(
        self,
        first_index: int,
        blocks: Sequence[BlockId],
        computed_at_s: float,
        foreign: frozenset[KVOrigin] = NO_ORIGINS,
    ) -> worker_pb2.BlocksReady | None:
        """Return the announcement of blocks from number `first_index` of the transfer order on; None if there are none.

        computed_at_s: monotonic time at which the last of them was computed; foreign: other models that computed some.
        """
        if not blocks:
            return None
        for start in range(0, len(blocks), self._piece):
            self._unchecked.append(Piece(first_index + start, blocks[start : start + self._piece]))
        origins = origins_to_proto({self._own, *foreign}) if self._own is not None else None
        return worker_pb2.BlocksReady(
            first_index=first_index, block_ids=blocks, computed_at_s=computed_at_s, origins=origins
        )

    @property
    def has_unchecked(self) -> bool:
        """Whether there are checksums left to send."""
        return bool(self._unchecked)

    async def next_checksums(self) -> worker_pb2.BlockChecksums:
        """Return the checksums of the next announced blocks. Raises PeerLost or TransferFailed."""
        piece = self._unchecked.popleft()
        checksums = await self._ranks.checksums(piece.blocks, self._units_per_block)
        return worker_pb2.BlockChecksums(first_index=piece.first_index, checksums=checksums)


async def announcements_for(context: Context, host: Host, num_readers: int) -> Announcements:
    """Return announcements for a caller with `num_readers` ranks (0 means 1); abort the call if it cannot read them."""
    try:
        own = host.origin if host.config.allow_mixed_quantization else None
        return Announcements(host.ranks, num_readers or 1, own)
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"num_ranks: {error}")


class KVSourceService(worker_pb2_grpc.KVSourceServicer):
    """The KVSource service, which pins cached blocks for the duration of a call."""

    def __init__(self, host: Host, drain: Drain) -> None:
        self._host = host
        self._drain = drain

    async def Lease(  # noqa: N802
        self, request: worker_pb2.LeaseRequest, context: Context
    ) -> AsyncIterator[worker_pb2.LeaseEvent]:
        """Pin and announce the longest cached prefix of the given blocks until the caller ends the call."""
        await check_peer(context, self._host.identity, request.incarnation, request.fingerprint)
        pools = self._host.ranks.describe()
        try:
            hashes = split_hashes(request.block_hashes[: pools[0].num_blocks * HASH_BYTES])  # no more can be cached
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"block_hashes: {error}")
        announcements = await announcements_for(context, self._host, request.num_ranks)
        with self._drain.request():
            self._drain.handed_off.release(request.handed_off)  # from now on, the drain waits for the lease
            pinning = self._host.call(lambda engine: engine.blocks.pin(hashes))
            try:
                pin = await asyncio.shield(pinning)
                foreign = NO_ORIGINS
                if self._host.config.allow_mixed_quantization:
                    foreign = await self._host.call(lambda engine: engine.blocks.origins(pin.blocks))
                accepted = worker_pb2.LeaseAccepted(pools=pools, num_blocks=pin.num_blocks)
                yield worker_pb2.LeaseEvent(accepted=accepted)
                yield worker_pb2.LeaseEvent(blocks=announcements.announce(0, pin.blocks, time.monotonic(), foreign))
                while announcements.has_unchecked:
                    yield worker_pb2.LeaseEvent(checksums=await announcements.next_checksums())
                await asyncio.Event().wait()  # ends with the call
            except (EngineEnded, TransferError) as error:  # a rank is lost, or the GPU cannot compute checksums
                await context.abort(status_of(error).code, str(error))
            finally:
                pinning.add_done_callback(self._unpin)

    def _unpin(self, pinning: "asyncio.Future[Pin]") -> None:
        if pinning.cancelled() or pinning.exception() is not None:  # the engine has ended, and holds nothing
            return
        pin = pinning.result()
        self._host.call(lambda engine: engine.blocks.pins.release(pin.pin_id))
