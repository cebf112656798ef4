"""A prompt's KV from the prefill workers of its plan, one after the other until all is here."""

import grpc

from baton.decode_worker.handover import Handover
from baton.decode_worker.incoming_prompt import IncomingPrompt
from baton.decode_worker.prefill_workers import PrefillWorkers
from baton.engine.scheduling.schedule import Received
from baton.kvtransfer.errors import TransferError
from baton.protos import worker_pb2
from baton.rpc.peers import Channels
from baton.worker.engine_host import EngineHost


class PromptFill:
    """Owns one request's handovers; each one begins with what the ones before it brought."""

    def __init__(self, host: EngineHost, channels: Channels, incoming: IncomingPrompt, deadline_s: float) -> None:
        self._host = host
        self._channels = channels
        self._incoming = incoming
        self._deadline_s = deadline_s
        self._workers = PrefillWorkers(incoming.entry)
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
            # What the last worker's transfer may still write must not land on the next one's blocks.
            await self._host.ranks.clear(self._blocks)

    async def _hand_over(self, peer: worker_pb2.PeerWorker) -> None:
        entry = self._incoming.entry
        handover = self._handover = Handover(self._host, entry.request, self._incoming, self._deadline_s, self.received)
        message = entry.prefill_request(
            peer, self._host.fingerprint, self._host.ranks.size, handover.received.num_tokens
        )
        with self._incoming.from_peer(peer, handover):
            await handover.run(self._channels, peer.address, message)
