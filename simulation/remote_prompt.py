"""A request's prompt on its way from a simulated prefill worker, over the real calls."""

from collections.abc import AsyncGenerator, Callable

import grpc

from decode_worker.decode_request import DecodeRequest
from engine.request import FinishReason
from engine.schedule import Received
from protos import worker_pb2, worker_pb2_grpc
from rpc.peers import Channels
from rpc.worker_counters import WorkerCounters
from simulation.connection_error import connection_error
from simulation.core import EngineCore
from simulation.handover import Handover
from simulation.request import PrefilledChunk

TRANSPORT = "simulated"

PrefillCall = grpc.aio.UnaryStreamCall[worker_pb2.PrefillRequest, worker_pb2.PrefillEvent]


class RemotePrompt:
    """Fills a request's blocks, and keeps its record of who computed it."""

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
        self._handover = Handover(entry.request, core.spec.block_size, core.link, self._prefill, self._on_first_token)
        entry.served_by.decode_cached_tokens = entry.request.num_cached_tokens

    @property
    def received(self) -> Received:
        """What is here."""
        return self._handover.received

    async def run(self) -> None:
        """Returns when all is here; raises ConnectionError."""
        try:
            await self._handover.run()
            self._counters.handovers += 1
        except ConnectionError:
            self._counters.handover_failures += 1
            raise
        finally:
            if self.received.sampled is None:
                self._entry.served_by.prefill_worker = self._entry.served_by.decode_worker  # which computes the rest
            self._note_transfer()
            num_bytes = self._entry.served_by.transferred_bytes
            self._counters.handover_bytes += num_bytes
            self._counters.note_read(num_bytes, num_bytes / self._core.spec.link_bytes_per_s)

    async def _prefill(self, num_cached_tokens: int) -> AsyncGenerator[PrefilledChunk, None]:
        """What the prefill worker announces."""
        peer = self._entry.command.prefill
        stub = worker_pb2_grpc.PrefillStub(self._channels.get(peer.address))
        call: PrefillCall = stub.Prefill(self._entry.prefill_request(peer, self._fingerprint, num_cached_tokens))
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
        served_by.prefill_cached_tokens = chunk.num_cached_tokens
        served_by.prefix_pulled_tokens = chunk.num_pulled_tokens
        reason: FinishReason | None = self._core.finish_rule.reason(self._entry.request, chunk.first_token)
        self._note_transfer()
        self._entry.say_first_token(worker_pb2.FirstToken(token_id=chunk.first_token), reason)
        if reason is not None:
            self._end(self._entry)

    def _note_transfer(self) -> None:
        """Tells what has really come, and how long it took."""
        handover, served_by, spec = self._handover, self._entry.served_by, self._core.spec
        num_blocks = handover.num_blocks_received
        served_by.kv_transport = TRANSPORT if num_blocks else ""
        served_by.handed_over_tokens = max(0, handover.received.num_tokens - self._entry.request.num_cached_tokens)
        served_by.transferred_bytes = num_blocks * spec.block_bytes
        served_by.transfer_s = served_by.transferred_bytes / spec.link_bytes_per_s
        served_by.exposed_transfer_s = served_by.handover_s = handover.exposed_s
