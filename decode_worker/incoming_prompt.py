"""What a request's handovers mean for it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc

from baton.decode_worker.decode_request import DecodeRequest
from baton.decode_worker.handover import Handover
from baton.engine.scheduling.finish_rule import FinishRule
from baton.kvtransfer.errors import ChecksumMismatch, TransferError
from baton.protos import common_pb2, worker_pb2
from baton.worker.counters import WorkerCounters

logger = logging.getLogger(__name__)


class IncomingPrompt:
    """Passes on what comes ahead of the KV, and keeps the request's record of who computed it."""

    def __init__(
        self,
        entry: DecodeRequest,
        finish_rule: FinishRule,
        counters: WorkerCounters,
        end: Callable[[DecodeRequest], None],
    ) -> None:
        """`end` takes the request out of the engine, and cancels the handover."""
        self.entry = entry
        self._finish_rule = finish_rule
        self._counters = counters
        self._end = end
        self._peer = entry.command.prefill
        self._handovers: list[Handover] = []

    @contextmanager
    def from_peer(self, peer: worker_pb2.PeerWorker, handover: Handover) -> Iterator[None]:
        """A handover, from beginning to end. A failure is logged and counted; what came before it counts too."""
        self._peer = peer
        self._handovers.append(handover)
        try:
            yield
            self._counters.handovers += 1
        except Exception as error:
            self._log(error)
            self._counters.handover_failures += 1
            self._counters.checksum_failures += isinstance(error, ChecksumMismatch)
            raise
        finally:
            self._counters.handover_bytes += handover.num_bytes
            self._counters.note_read(handover.num_bytes, handover.times.transfer_s)

    def on_first_token(self, first: worker_pb2.FirstToken) -> None:
        """Passes the token on; one that ends the request needs no KV."""
        served_by = self.entry.served_by
        served_by.prefill_worker = self._peer.worker_id
        served_by.kv_transport = self._handovers[-1].peer_transport
        served_by.prefill_cached_tokens = first.num_cached_tokens
        served_by.prefix_pulled_tokens = first.num_pulled_tokens
        reason = self._finish_rule.reason(self.entry.request, first.token_id)
        if reason is not None:
            self._note_transfer()
        self.entry.say_first_token(first, reason)
        if reason is not None:
            self._end(self.entry)

    def on_prompt_logprobs(self, positions: Sequence[common_pb2.PositionLogprobs]) -> None:
        """Passes them on."""
        self.entry.say_prompt_logprobs(positions)

    def ended(self) -> None:
        """Nothing more comes."""
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
        """Tells what has really come, and how long it took."""
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
