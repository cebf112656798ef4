"""What a handover means for its request."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import grpc

from decode_worker.decode_request import DecodeRequest
from decode_worker.handover import Handover
from engine.finish_rule import FinishRule
from engine.schedule import Received
from kvtransfer.errors import ChecksumMismatch, TransferError
from protos import common_pb2, worker_pb2
from rpc.worker_counters import WorkerCounters

logger = logging.getLogger(__name__)


class IncomingPrompt:
    """Passes on what comes ahead of the KV, and keeps the request's record of who computed it."""

    handover: Handover

    def __init__(self, entry: DecodeRequest, finish_rule: FinishRule, end: Callable[[DecodeRequest], None]) -> None:
        """`end` takes the request out of the engine, and cancels the handover."""
        self._entry = entry
        self._finish_rule = finish_rule
        self._end = end

    def on_first_token(self, first: worker_pb2.FirstToken) -> None:
        """Passes the token on; one that ends the request needs no KV."""
        served_by = self._entry.served_by
        served_by.kv_transport = self.handover.peer_transport
        served_by.prefill_cached_tokens = first.num_cached_tokens
        served_by.prefix_pulled_tokens = first.num_pulled_tokens
        reason = self._finish_rule.reason(self._entry.request, first.token_id)
        if reason is not None:
            self._note_transfer()
        self._entry.say_first_token(first, reason)
        if reason is not None:
            self._end(self._entry)

    def on_prompt_logprobs(self, positions: Sequence[common_pb2.PositionLogprobs]) -> None:
        """Passes them on."""
        self._entry.say_prompt_logprobs(positions)

    def outcome(self, task: "asyncio.Task[None]", counters: WorkerCounters, own_worker_id: str) -> Received:
        """What came. A failure is logged and counted, and costs only what did not come."""
        worker_id = self._entry.command.prefill.worker_id
        error = None if task.cancelled() else task.exception()
        if isinstance(error, grpc.aio.AioRpcError):
            logger.warning("handover from %s failed: %s: %s", worker_id, error.code(), error.details())
        elif isinstance(error, TransferError):
            logger.warning("handover from %s failed: %s", worker_id, error)
        elif error is not None:
            logger.error("handover from %s failed", worker_id, exc_info=error)
        counters.handovers += error is None and not task.cancelled()
        counters.handover_failures += error is not None
        counters.checksum_failures += isinstance(error, ChecksumMismatch)
        counters.handover_bytes += self.handover.num_bytes
        counters.note_read(self.handover.num_bytes, self.handover.times.transfer_s)
        if self.handover.received.sampled is None:
            self._entry.served_by.prefill_worker = own_worker_id  # which computes the rest
        self._note_transfer()
        return self.handover.received

    def _note_transfer(self) -> None:
        """Tells what has really come, and how long it took."""
        served_by, handover = self._entry.served_by, self.handover
        served_by.kv_transport = handover.peer_transport if handover.num_bytes else ""
        num_known_tokens = self._entry.request.num_cached_tokens
        served_by.handed_over_tokens = max(0, handover.received.num_tokens - num_known_tokens)
        served_by.transferred_bytes = handover.num_bytes
        served_by.transfer_s = handover.times.transfer_s
        served_by.exposed_transfer_s = handover.times.exposed_transfer_s
        served_by.handover_s = handover.times.handover_s
