"""Takes a prefix that another simulated worker has in its cache, instead of computing it."""

import asyncio

import grpc

from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Channels
from baton.simulation.engine.clock import sleep_until
from baton.simulation.engine.link import Link
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.fills import connection_error
from baton.worker.reporting import WorkerCounters

LeaseCall = grpc.aio.UnaryStreamCall[worker_pb2.LeaseRequest, worker_pb2.LeaseEvent]


class PrefixPull:
    """Brings a request's first blocks from another worker's cache, under a lease there."""

    def __init__(
        self,
        request: Request,
        spec: WorkerSpec,
        link: Link,
        channels: Channels,
        counters: WorkerCounters,
        source: worker_pb2.PeerWorker,
        fingerprint: str,
    ) -> None:
        self._spec = spec
        self._counters = counters
        self._link = link
        self._channels = channels
        self._source = source
        self._fingerprint = fingerprint
        num_full_blocks = (request.num_tokens - 1) // spec.block_size  # one token at least is left to compute
        self._hashes = request.block_hashes[:num_full_blocks]
        self._num_known_blocks = request.num_computed_tokens // spec.block_size
        self._num_coming_blocks = 0
        self._arrives_at_s = 0.0

    @property
    def received(self) -> Received:
        """What is here."""
        return Received(self._num_known_blocks * self._spec.block_size + self.num_pulled_tokens)

    @property
    def num_pulled_tokens(self) -> int:
        """Tokens whose KV came from the source."""
        is_here = asyncio.get_running_loop().time() >= self._arrives_at_s
        return self._num_coming_blocks * self._spec.block_size if is_here else 0

    async def run(self) -> None:
        """Returns when all that the source has is here; raises ConnectionError."""
        lease = worker_pb2.LeaseRequest(
            block_hashes=b"".join(self._hashes), incarnation=self._source.incarnation, fingerprint=self._fingerprint
        )
        call: LeaseCall = worker_pb2_grpc.KVSourceStub(self._channels.get(self._source.address)).Lease(lease)
        try:
            async for event in call:
                if event.HasField("blocks"):
                    num_blocks = len(event.blocks.block_ids) - self._num_known_blocks
                    if num_blocks > 0:
                        self._arrives_at_s = self._link.reserve(num_blocks)
                        self._num_coming_blocks = num_blocks
                        await sleep_until(self._arrives_at_s)
                    return
        except grpc.aio.AioRpcError as error:
            self._counters.handover_failures += 1
            raise connection_error(error) from error
        finally:
            call.cancel()
            num_bytes = self.num_pulled_tokens // self._spec.block_size * self._spec.block_bytes
            self._counters.handover_bytes += num_bytes
            self._counters.note_read(num_bytes, num_bytes / self._spec.link_bytes_per_s)
        raise ConnectionError("the peer ended the lease before it announced blocks")
