"""Remote prefill of one prompt: the prefill workers of its plan, one after the other, until all KV is received."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc

from baton.decode_worker.decode_request import DecodeRequest, PrefillWorkers
from baton.decode_worker.handover import Handover, HandoverLimits, Metadata
from baton.engine.request import FinishRule
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.errors import ChecksumMismatch, TransferError
from baton.protos import common_pb2, worker_pb2
from baton.rpc.peers import Channels
from baton.rpc.tracing.span import Span
from baton.worker.base import Host
from baton.worker.reporting import WorkerCounters

logger = logging.getLogger(__name__)


class HandoverReporter:
    """The forwarder of first tokens and prompt logprobs, and the keeper of the request's `served_by` record."""

    def __init__(
        self,
        entry: DecodeRequest,
        finish_rule: FinishRule,
        counters: WorkerCounters,
        end: Callable[[DecodeRequest], None],
    ) -> None:
        """`end` removes the request from the engine and cancels the handover."""
        self.entry = entry
        self._finish_rule = finish_rule
        self._counters = counters
        self._end = end
        self._peer = entry.command.prefill
        self._handovers: list[Handover] = []
        self._span: Span | None = None  # of the last handover

    @contextmanager
    def from_peer(self, peer: worker_pb2.PeerWorker, handover: Handover) -> Iterator[Metadata]:
        """Count one handover and its bytes. A failure is logged and counted; the bytes before it count too.

        Yields the metadata of its call.
        """
        self._peer = peer
        self._handovers.append(handover)
        trace = self.entry.trace
        span = self._span = None if trace is None else trace.begin_transfer(peer.worker_id)
        try:
            yield () if span is None else span.context.metadata()
            self._counters.handovers += 1
            if handover.num_bytes:
                exemplar = None if trace is None else trace.exemplar
                phases_s = handover.times.phases_s
                self._counters.handover_times.note(handover.peer_transport, handover.num_bytes, phases_s, exemplar)
        except Exception as error:
            self._log(error)
            if span is not None:
                span.fail(type(error).__name__, str(error) if isinstance(error, TransferError) else "")
            self._counters.handover_failures += 1
            self._counters.checksum_failures += isinstance(error, ChecksumMismatch)
            raise
        finally:
            self._counters.handover_bytes += handover.num_bytes
            self._counters.reads.note(handover.num_bytes, handover.times.transfer_s)
            if span is not None:
                span.attributes |= handover.attributes()
                span.end()

    def on_first_token(self, first: worker_pb2.FirstToken) -> None:
        """Send the token to the router. If it ends the request, the rest of the KV is not needed."""
        if self.entry.trace is not None and self._span is not None:
            self.entry.trace.note_elsewhere(self._span, first.timings)
        served_by = self.entry.served_by
        served_by.prefill_worker = self._peer.worker_id
        served_by.kv_transport = self._handovers[-1].peer_transport
        served_by.prefill_cached_tokens = first.num_cached_tokens
        served_by.prefix_pulled_tokens = first.num_pulled_tokens
        served_by.ClearField("stored_tokens")
        served_by.stored_tokens.update(first.stored_tokens)
        self.entry.note_origins(self._handovers[-1].origins.all)
        reason = self._finish_rule.reason(self.entry.request, first.token_id)
        if reason is not None:
            self._note_transfer()
        self.entry.say_first_token(first, reason)
        if reason is not None:
            self._end(self.entry)

    def on_prompt_logprobs(self, positions: Sequence[common_pb2.PositionLogprobs]) -> None:
        """Send the logprobs to the router."""
        self.entry.say_prompt_logprobs(positions)

    def ended(self) -> None:
        """Complete the `served_by` record after the last handover."""
        if self._handovers and self._handovers[-1].received.sampled is None:
            self.entry.served_by.prefill_worker = self.entry.served_by.decode_worker  # which computes the rest
        self._note_transfer()

    def _log(self, error: Exception) -> None:
        worker_id = self._peer.worker_id
        if isinstance(error, grpc.aio.AioRpcError):
            logger.warning("handover from %s failed: %s: %s", worker_id, error.code(), error.details())
        elif isinstance(error, TransferError):
            logger.warning("handover from %s failed: %s", worker_id, error)
        else:
            logger.error("handover from %s failed", worker_id, exc_info=error)

    def _note_transfer(self) -> None:
        """Record in `served_by` what was transferred and how long it took."""
        if not self._handovers:
            return
        self.entry.is_served_by_sent = False
        served_by, last = self.entry.served_by, self._handovers[-1]
        brought = [handover for handover in self._handovers if handover.num_bytes]
        served_by.kv_transport = brought[-1].peer_transport if brought else ""
        num_known_tokens = self.entry.request.num_cached_tokens
        served_by.handed_over_tokens = max(0, last.received.num_tokens - num_known_tokens)
        served_by.transferred_bytes = sum(handover.num_bytes for handover in brought)
        served_by.transfer_s = sum(handover.times.transfer_s for handover in brought)
        served_by.exposed_transfer_s = last.times.exposed_transfer_s
        served_by.handover_s = last.times.handover_s


class RemotePrefill:
    """The handovers of one request; each starts from what the earlier ones received."""

    def __init__(self, host: Host, channels: Channels, incoming: HandoverReporter, limits: HandoverLimits) -> None:
        self._host = host
        self._channels = channels
        self._incoming = incoming
        self._limits = limits
        self._workers = PrefillWorkers(incoming.entry)
        request = incoming.entry.request
        order = host.kv_groups.transfer_order(request.num_tokens)
        self._blocks = order.blocks(request.block_tables, state=request.state_blocks)
        self._received = Received(request.num_computed_tokens)
        self._handover: Handover | None = None

    @property
    def received(self) -> Received:
        """The part of the prompt's KV that the handovers have received so far."""
        return self._received if self._handover is None else self._handover.received

    async def run(self) -> None:
        """Return when all KV is received.

        Raises the last worker's AioRpcError or TransferError if no other worker is left.
        """
        peer = self._workers.first
        while True:
            try:
                await self._hand_over(peer)
                return
            except (grpc.aio.AioRpcError, TransferError):
                following = self._workers.next_after(self.received)
                if following is None:
                    raise
            peer = following
            # Late writes of the failed transfer must not overwrite blocks of the next one.
            await self._host.ranks.clear(self._blocks)

    async def _hand_over(self, peer: worker_pb2.PeerWorker) -> None:
        entry = self._incoming.entry
        handover = self._handover = Handover(self._host, entry.request, self._incoming, self._limits, self.received)
        message = entry.prefill_request(
            peer, self._host.fingerprint, self._host.ranks.size, handover.received.num_tokens
        )
        with self._incoming.from_peer(peer, handover) as metadata:
            await handover.run(self._channels, peer.address, message, metadata)
