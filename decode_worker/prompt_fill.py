"""A prompt's KV from the prefill workers of its plan, one after the other until all is here."""

from collections.abc import Iterator

import grpc

from decode_worker.handover import Handover
from decode_worker.incoming_prompt import IncomingPrompt
from engine.schedule import Received
from kvtransfer.errors import TransferError
from protos import worker_pb2
from rpc.engine_host import EngineHost
from rpc.peers import Channels

LEAST_TOKENS = 256  # fewer are computed here sooner than another worker is asked for them


class PromptFill:
    """Owns one request's handovers; each one begins with what the ones before it brought."""

    def __init__(self, host: EngineHost, channels: Channels, incoming: IncomingPrompt, deadline_s: float) -> None:
        self._host = host
        self._channels = channels
        self._incoming = incoming
        self._deadline_s = deadline_s
        request = incoming.entry.request
        self._blocks: list[int] = list(request.block_table)
        self._received = Received(request.num_computed_tokens)
        self._handover: Handover | None = None

    @property
    def received(self) -> Received:
        """What is here."""
        return self._received if self._handover is None else self._handover.received

    async def run(self) -> None:
        """Returns when all is here; raises the last worker's AioRpcError or TransferError if no other is left."""
        peers = self._peers()
        peer = next(peers)
        while True:
            try:
                await self._hand_over(peer)
                return
            except (grpc.aio.AioRpcError, TransferError):
                following = next(peers, None)
                if following is None or not self._is_worth_asking():
                    raise
            peer = following
            # What the last worker's transfer may still write must not land on the next one's blocks.
            await self._host.transport.quarantine.wait_clear(self._blocks)

    async def _hand_over(self, peer: worker_pb2.PeerWorker) -> None:
        entry = self._incoming.entry
        handover = self._handover = Handover(self._host, entry.request, self._incoming, self._deadline_s, self.received)
        message = entry.prefill_request(peer, self._host.fingerprint, handover.received.num_tokens)
        with self._incoming.from_peer(peer, handover):
            await handover.run(self._channels, peer.address, message)

    def _peers(self) -> Iterator[worker_pb2.PeerWorker]:
        command = self._incoming.entry.command
        yield command.prefill
        yield from command.prefill_fallbacks

    def _is_worth_asking(self) -> bool:
        """Whether much is missing. The logprobs of a prompt come in one piece, from one worker."""
        request = self._incoming.entry.request
        missing = request.num_tokens - self.received.num_tokens
        return missing >= LEAST_TOKENS and request.sampling.prompt_logprobs is None
