"""The handover of one prompt's KV from a prefill worker to this decode worker.

1. The decode worker calls `Prefill` with the tokens and the number of them whose KV it already has.
2. The prefill worker accepts and describes its pool; the transport connects.
3. The prefill worker announces blocks chunk by chunk. The decode worker reads them, one announcement at a time, into
   the request's own blocks while the prefill worker computes the next chunk. Checksums follow and are compared.
4. The prefill worker sends the first output token as soon as it is sampled; the router gets it at once.
5. After the last block the decode worker ends the call, which releases the lease on the prefill worker's blocks.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import grpc

from baton.decode_worker.read_times import ReadTimes
from baton.engine.outputs import SampledToken
from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.errors import PeerRefused, TransferDeadline
from baton.protos import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Channels, next_event
from baton.rpc.requests import logprobs_from_proto
from baton.rpc.tracing.span import Attribute
from baton.worker.base import Host, KVReceive
from baton.worker.kv.origins import ReceivedOrigins

SILENCE_S = 5.0  # without an event or keep-alive the prefill worker counts as lost


@dataclass(frozen=True, slots=True)
class HandoverLimits:
    """Maximum seconds that a handover waits."""

    read_s: float  # for one read of announced blocks
    progress_s: float  # for progress, while the prefill worker sends keep-alives; includes the wait in its queue


@dataclass(frozen=True, slots=True)
class Progress:
    """Counts of events from a prefill worker, each with an upper bound, so progress cannot last forever."""

    is_accepted: bool
    has_token: bool
    num_announced: int  # blocks
    num_expected: int  # blocks whose checksums are known
    num_prompt_logprobs: int


Metadata = tuple[tuple[str, str], ...]
PrefillCall = grpc.aio.UnaryStreamCall[worker_pb2.PrefillRequest, worker_pb2.PrefillEvent]


class HandoverListener(Protocol):
    """The receiver of tokens and logprobs that arrive ahead of the KV."""

    def on_first_token(self, first: worker_pb2.FirstToken) -> None:
        """Take the first output token."""
        ...

    def on_prompt_logprobs(self, positions: Sequence[common_pb2.PositionLogprobs]) -> None:
        """Take the logprobs of the next prompt positions."""
        ...


class Handover:
    """One call to a prefill worker; `received` is at any time what has arrived and passed its checksum."""

    def __init__(
        self, host: Host, request: Request, listener: HandoverListener, limits: HandoverLimits, known: Received
    ) -> None:
        """Prepare a handover for a request whose block table is allocated.

        known: what earlier handovers brought. A first token in it is not sent again.
        """
        self.times = ReadTimes()
        self.peer_transport = ""
        self._host = host
        self._listener = listener
        self._limits = limits
        self._num_tokens = request.num_tokens
        self._order = host.kv_groups.transfer_order(request.num_tokens)
        self._blocks = self._order.blocks(request.block_tables, state=request.state_blocks)
        # An earlier recurrent state, which comes last, is not received twice: this prefill worker may not finish.
        num_known_tokens = request.num_computed_tokens if self._order.num_state_blocks else known.num_tokens
        self._num_known = num_known_tokens // host.config.block_size  # blocks of each KV group
        self._num_known_blocks = self._order.num_before(self._num_known)
        self._num_announced = self._num_expected = self._num_known_blocks
        self._receiver: KVReceive | None = None
        self._announced: asyncio.Queue[worker_pb2.BlocksReady] = asyncio.Queue(len(self._blocks) + 1)
        self._all_expected = asyncio.Event()  # every block's checksum is known
        if self._num_known_blocks == len(self._blocks):
            self._all_expected.set()
        self._sampled = known.sampled
        self._has_token = False  # from this prefill worker
        self._num_prompt_logprobs = known.num_prompt_logprobs
        self.origins = ReceivedOrigins(host.origin, self._blocks, self._num_known_blocks)
        self.origins.by_block |= known.origins
        reports_prompt = request.sampling.prompt_logprobs is not None
        self._max_prompt_logprobs = request.num_prompt_tokens - 1 if reports_prompt else 0

    @property
    def num_blocks(self) -> int:
        """Blocks received and checked, including those known from the start."""
        return self._receiver.num_blocks_received if self._receiver else self._num_known_blocks

    @property
    def received(self) -> Received:
        """Tokens with checked KV, the first output token, and the number of prompt logprobs."""
        num_usable = self._order.num_usable(self.num_blocks, self._num_known)
        num_tokens = min(num_usable * self._host.config.block_size, self._num_tokens)
        return Received(num_tokens, self._sampled, self._num_prompt_logprobs, self.origins.by_block)

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks that this handover brought."""
        return (self.num_blocks - self._num_known_blocks) * self._host.block_bytes

    def attributes(self) -> dict[str, Attribute]:
        """Return the figures for a span."""
        return {
            "baton.transport": self.peer_transport,
            "baton.num_bytes": self.num_bytes,
            "baton.num_blocks": self.num_blocks - self._num_known_blocks,
            "baton.transfer_s": self.times.transfer_s,
            "baton.exposed_transfer_s": self.times.exposed_transfer_s,
            "baton.handover_s": self.times.handover_s,
        }

    async def run(
        self, channels: Channels, address: str, message: worker_pb2.PrefillRequest, metadata: Metadata = ()
    ) -> None:
        """Return when all blocks are received and checked.

        Raises AioRpcError or TransferError; `received` then has what arrived before.
        """
        call: PrefillCall = worker_pb2_grpc.PrefillStub(channels.get(address)).Prefill(message, metadata=metadata)
        tasks = [asyncio.create_task(each) for each in (self._listen(call), self._pull())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            self.times.complete_at_s = time.monotonic()
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _listen(self, call: PrefillCall) -> None:
        """Handle the call's events until the last block's checksum and the first token have arrived."""
        progress, progress_at_s = self._progress, time.monotonic()
        while event := await next_event(call, "the prefill worker", SILENCE_S):
            await self._handle(event)
            if self._num_expected == len(self._blocks):
                self._all_expected.set()
                if self._has_token:
                    return
            if (reached := self._progress) != progress:
                progress, progress_at_s = reached, time.monotonic()
            elif time.monotonic() - progress_at_s > self._limits.progress_s:
                raise TransferDeadline(f"the prefill worker made no progress for {self._limits.progress_s:g} s")
        raise PeerRefused("the prefill worker ended the call before all blocks were announced")

    @property
    def _progress(self) -> Progress:
        return Progress(
            self._receiver is not None,
            self._has_token,
            self._num_announced,
            self._num_expected,
            self._num_prompt_logprobs,
        )

    async def _handle(self, event: worker_pb2.PrefillEvent) -> None:
        """Handle one event; an empty one is a keep-alive."""
        if event.HasField("accepted"):
            await self._accept(event.accepted)
        if event.HasField("blocks"):
            self._queue(event.blocks)
        if event.prompt_logprobs:
            self._take_prompt_logprobs(event.prompt_logprobs)
        if event.HasField("first_token"):
            self._take_token(event.first_token)
        if event.HasField("checksums"):
            receiver = self._connected()
            receiver.expect(event.checksums.first_index, event.checksums.checksums)
            self._num_expected = receiver.num_blocks_expected
            if self._num_expected > self._num_announced:
                raise PeerRefused("the prefill worker sent checksums of blocks that it has not announced")

    async def _accept(self, accepted: worker_pb2.PrefillAccepted) -> None:
        if self._receiver is not None:
            raise PeerRefused("the prefill worker accepted twice")
        self._receiver = await self._host.ranks.receive(
            accepted.pools, self._blocks, self._num_known_blocks, self._limits.read_s
        )
        self.peer_transport = self._receiver.transport

    def _queue(self, blocks: worker_pb2.BlocksReady) -> None:
        self.times.note_computed(blocks.computed_at_s, time.monotonic())
        self.origins.note(blocks)
        try:
            self._announced.put_nowait(blocks)
        except asyncio.QueueFull:
            raise PeerRefused("the prefill worker announced more often than there are blocks") from None
        num_announced = min(blocks.first_index + len(blocks.block_ids), len(self._blocks))
        self._num_announced = max(self._num_announced, num_announced)

    def _take_prompt_logprobs(self, positions: Sequence[common_pb2.PositionLogprobs]) -> None:
        num_sent = self._num_prompt_logprobs + len(positions)
        if num_sent > self._max_prompt_logprobs:
            raise PeerRefused(f"the prefill worker sent more than {self._max_prompt_logprobs} prompt logprobs")
        self._num_prompt_logprobs = num_sent
        self._listener.on_prompt_logprobs(positions)

    def _take_token(self, first: worker_pb2.FirstToken) -> None:
        if self._has_token or first.token_id >= self._host.vocab_size:
            raise PeerRefused(f"the prefill worker sent token {first.token_id}: a second one, or not in the vocabulary")
        self._has_token = True
        if self._sampled is not None:
            return  # an earlier prefill worker sent it, and the router has it
        logprobs = logprobs_from_proto(first.logprobs) if first.HasField("logprobs") else None
        self._sampled = SampledToken(first.token_id, logprobs)
        self._listener.on_first_token(first)

    async def _pull(self) -> None:
        """Read announced blocks until the last one is here and all checksums have been compared."""
        num_read = self._num_known_blocks
        while num_read < len(self._blocks):
            blocks = await self._announced.get()
            receiver = self._connected()
            transfer_s = receiver.transfer_s
            await receiver.read(blocks.first_index, blocks.block_ids)
            self.times.note_read(time.monotonic(), receiver.transfer_s - transfer_s)
            num_read = receiver.num_blocks_read
        try:
            async with asyncio.timeout(self._limits.read_s):
                await self._all_expected.wait()
                if self._receiver is not None:
                    await self._receiver.settled()
        except TimeoutError as error:
            raise TransferDeadline(f"checksums missing {self._limits.read_s:.3f} s after the last block") from error

    def _connected(self) -> KVReceive:
        if self._receiver is None:
            raise PeerRefused("the prefill worker announced blocks before it accepted")
        return self._receiver
