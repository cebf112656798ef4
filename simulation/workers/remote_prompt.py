"""A request's prompt on its way from simulated prefill workers, over the real calls."""

import logging
from collections.abc import AsyncGenerator, Callable

import grpc

from baton.decode_worker.decode_request import DecodeRequest, PrefillWorkers
from baton.engine.request import FinishReason
from baton.engine.scheduling.schedule import Received
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Channels
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.request import PrefilledChunk
from baton.simulation.workers.fills import connection_error
from baton.simulation.workers.handover import Handover
from baton.worker.reporting import WorkerCounters

logger = logging.getLogger(__name__)

TRANSPORT = "simulated"

PrefillCall = grpc.aio.UnaryStreamCall[worker_pb2.PrefillRequest, worker_pb2.PrefillEvent]


class RemotePrompt:
    """Fills a request's blocks, and keeps its record of who computed it.

    Asks the workers of the plan in order, as a real worker does (see `baton.decode_worker.remote_prefill`).
    """

    def __init__(
        self,
        core: EngineCore,
        entry: DecodeRequest,
        fingerprint: str,
        channels: Channels,
        counters: WorkerCounters,
        end: Callable[[DecodeRequest], None],
    ) -> None:
        """`end` takes the request out of the engine, and cancels the fill."""
        self._core = core
        self._entry = entry
        self._fingerprint = fingerprint
        self._channels = channels
        self._counters = counters
        self._end = end
        self._workers = PrefillWorkers(entry)
        self._peer = self._workers.first
        self._handovers: list[Handover] = []
        entry.served_by.decode_cached_tokens = entry.request.num_cached_tokens
        entry.served_by.handed_over_tokens = entry.request.num_tokens - entry.request.num_computed_tokens  # as expected

    @property
    def received(self) -> Received:
        """What is here."""
        if not self._handovers:
            return Received(self._entry.request.num_computed_tokens)
        return self._handovers[-1].received

    async def run(self) -> None:
        """Returns when all is here; raises the last worker's ConnectionError if no other is left."""
        peer: worker_pb2.PeerWorker | None = self._workers.first
        try:
            while peer is not None:
                peer = await self._hand_over(peer)
        finally:
            if self.received.sampled is None:
                self._entry.served_by.prefill_worker = self._entry.served_by.decode_worker  # which computes the rest
            self._note_transfer()

    async def _hand_over(self, peer: worker_pb2.PeerWorker) -> worker_pb2.PeerWorker | None:
        """Takes over what is missing; returns whom to ask next if the peer fails. Raises ConnectionError."""
        self._peer = peer
        request, spec = self._entry.request, self._core.spec
        handover = Handover(
            request, spec.block_size, self._core.link, self._prefill, self._on_first_token, self.received.num_tokens
        )
        self._handovers.append(handover)
        try:
            await handover.run()
            self._counters.handovers += 1
            return None
        except ConnectionError as error:
            self._counters.handover_failures += 1
            following = self._workers.next_after(self.received)
            if following is None:
                raise
            logger.warning("handover from %s failed: %s", peer.worker_id, error)
            return following
        finally:
            num_bytes = handover.num_blocks_received * spec.block_bytes
            self._counters.handover_bytes += num_bytes
            self._counters.note_read(num_bytes, num_bytes / spec.link_bytes_per_s)

    async def _prefill(self, num_cached_tokens: int) -> AsyncGenerator[PrefilledChunk, None]:
        """What the prefill worker announces."""
        peer = self._peer
        stub = worker_pb2_grpc.PrefillStub(self._channels.get(peer.address))
        call: PrefillCall = stub.Prefill(self._entry.prefill_request(peer, self._fingerprint, 1, num_cached_tokens))
        num_blocks = 0
        try:
            async for event in call:
                if event.HasField("blocks"):
                    num_blocks = event.blocks.first_index + len(event.blocks.block_ids)
                first = event.first_token
                yield PrefilledChunk(
                    num_computed_tokens=num_blocks * self._core.spec.block_size,
                    num_cached_tokens=first.num_cached_tokens,
                    first_token=first.token_id if event.HasField("first_token") else None,
                    num_pulled_tokens=first.num_pulled_tokens,
                )
        except grpc.aio.AioRpcError as error:
            raise connection_error(error) from error
        finally:
            call.cancel()  # ends the lease on the prompt's blocks

    def _on_first_token(self, chunk: PrefilledChunk) -> None:
        """Passes the token on; one that ends the request needs no KV."""
        assert chunk.first_token is not None
        served_by = self._entry.served_by
        served_by.prefill_worker = self._peer.worker_id
        served_by.prefill_cached_tokens = chunk.num_cached_tokens
        served_by.prefix_pulled_tokens = chunk.num_pulled_tokens
        served_by.kv_transport = TRANSPORT
        reason: FinishReason | None = self._core.finish_rule.reason(self._entry.request, chunk.first_token)
        if reason is not None:
            self._note_transfer()
        self._entry.say_first_token(worker_pb2.FirstToken(token_id=chunk.first_token), reason)
        if reason is not None:
            self._end(self._entry)

    def _note_transfer(self) -> None:
        """Tells what has really come, and how long it took."""
        if not self._handovers:
            return
        self._entry.is_served_by_sent = False
        last, served_by, spec = self._handovers[-1], self._entry.served_by, self._core.spec
        num_blocks = sum(handover.num_blocks_received for handover in self._handovers)
        served_by.kv_transport = TRANSPORT if num_blocks else ""
        served_by.handed_over_tokens = max(0, last.received.num_tokens - self._entry.request.num_cached_tokens)
        served_by.transferred_bytes = num_blocks * spec.block_bytes
        served_by.transfer_s = served_by.transferred_bytes / spec.link_bytes_per_s
        served_by.exposed_transfer_s = served_by.handover_s = last.exposed_s
