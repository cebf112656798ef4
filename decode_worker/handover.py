"""One prompt's KV on its way from a prefill worker to this one.

1. `Prefill` is called at the prefill worker with the tokens and how many of them have their KV here already.
2. It accepts and says how its pool is read; the transport connects.
3. It announces blocks chunk by chunk. Announcements are read one after the other into the request's own blocks, and
   checked, while the prefill worker computes the next chunk.
4. The token that follows the prompt comes as soon as it is sampled, and is passed on at once.
5. When the last block is in, the call is ended, which ends the lease at the prefill worker.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from engine.outputs import SampledToken
from engine.request import Request
from engine.scheduler import Received
from kvtransfer.errors import PeerRefused
from kvtransfer.receiver import BlockReceiver
from protos import worker_pb2, worker_pb2_grpc
from rpc.engine_host import EngineHost
from rpc.pool_description import pool_from_proto
from rpc.sampling import logprobs_from_proto

PrefillCall = grpc.aio.UnaryStreamCall[worker_pb2.PrefillRequest, worker_pb2.PrefillEvent]


@dataclass(slots=True)
class ReadTimes:
    """When reads ran; monotonic seconds."""

    reads: list[tuple[float, float]] = field(default_factory=list)  # (end, duration)
    last_computed_at_s: float = 0.0  # when the prefill worker had computed the last announced block
    complete_at_s: float = 0.0  # when the last block was in and checked

    @property
    def transfer_s(self) -> float:
        """Time spent reading."""
        return sum(duration for _, duration in self.reads)

    @property
    def exposed_transfer_s(self) -> float:
        """The part of it after the last block was computed, that no computation hid."""
        return sum(max(0.0, min(duration, end - self.last_computed_at_s)) for end, duration in self.reads)


class Handover:
    """Owns the call to the prefill worker; `received` says at any time what has come and been checked."""

    def __init__(
        self,
        host: EngineHost,
        request: Request,
        on_first_token: Callable[[worker_pb2.FirstToken], None],
        on_prompt_logprobs: Callable[[worker_pb2.PromptLogprobs], None],
        deadline_s: float,
    ) -> None:
        self.times = ReadTimes()
        self.peer_transport = ""
        self._host = host
        self._request = request
        self._on_first_token = on_first_token
        self._on_prompt_logprobs = on_prompt_logprobs
        self._deadline_s = deadline_s
        self._num_tokens = request.num_tokens
        self._num_known_blocks = request.num_computed_tokens // host.config.block_size
        self._num_blocks = self._num_known_blocks
        self._receiver: BlockReceiver | None = None
        self._announced: asyncio.Queue[worker_pb2.BlocksReady] = asyncio.Queue()
        self._sampled: SampledToken | None = None
        self._num_prompt_logprobs = 0

    @property
    def received(self) -> Received:
        """What is here, whole and checked."""
        num_tokens = min(self._num_blocks * self._host.config.block_size, self._num_tokens)
        return Received(num_tokens, self._sampled, self._num_prompt_logprobs)

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks that came."""
        return (self._num_blocks - self._num_known_blocks) * self._host.block_bytes

    async def run(self, stub: "worker_pb2_grpc.PrefillAsyncStub", message: worker_pb2.PrefillRequest) -> None:
        """Returns when all is here; raises AioRpcError or TransferError with `received` saying what came.

        It returns, raises or ends as cancelled only when nothing can be written into the blocks any more.
        """
        call: PrefillCall = stub.Prefill(message)
        tasks = [asyncio.create_task(self._listen(call)), asyncio.create_task(self._pull())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            self.times.complete_at_s = time.monotonic()
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.shield(self._host.transport.quarantine.wait_clear(self._request.block_table))

    async def _listen(self, call: PrefillCall) -> None:
        """Takes the call's events, until the last block is announced and the token is here."""
        num_announced = self._num_known_blocks
        async for event in call:
            if event.HasField("accepted"):
                peer = await self._host.transport.connect(pool_from_proto(event.accepted.pool))
                self.peer_transport = self._host.transport.choices[peer].transport
                self._receiver = BlockReceiver(
                    self._host.transport,
                    peer,
                    self._host.pool_tensor,
                    self._request.block_table,
                    self._deadline_s,
                    self._num_known_blocks,
                )
            elif event.HasField("blocks"):
                self._announced.put_nowait(event.blocks)
                num_announced = max(num_announced, event.blocks.first_index + len(event.blocks.block_ids))
            elif event.HasField("prompt_logprobs"):
                self._num_prompt_logprobs += len(event.prompt_logprobs.positions)
                self._on_prompt_logprobs(event.prompt_logprobs)
            elif event.HasField("first_token"):
                self._take_first_token(event.first_token)
            if self._sampled is not None and num_announced == len(self._request.block_table):
                return
        raise PeerRefused("the prefill worker ended the call before all blocks were announced")

    async def _pull(self) -> None:
        """Reads what is announced, until the last block is here."""
        while self._num_blocks < len(self._request.block_table):
            blocks = await self._announced.get()
            if self._receiver is None:
                raise PeerRefused("the prefill worker announced blocks before it accepted")
            read_s = self._receiver.transfer_s
            self.times.last_computed_at_s = max(self.times.last_computed_at_s, blocks.computed_at_s)
            try:
                await self._receiver.receive(blocks.first_index, blocks.block_ids, blocks.checksums)
            finally:
                self.times.reads.append((time.monotonic(), self._receiver.transfer_s - read_s))
                self._num_blocks = self._receiver.num_blocks_received

    def _take_first_token(self, first: worker_pb2.FirstToken) -> None:
        logprobs = logprobs_from_proto(first.logprobs) if first.HasField("logprobs") else None
        self._sampled = SampledToken(first.token_id, logprobs)
        self._on_first_token(first)
