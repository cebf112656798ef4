"""The life of a request in a decode worker.

1. A router's command arrives on its stream; the engine queues the request, or refuses it, which is told at once.
2. The engine admits it when there are blocks for all its tokens, and takes what its prefix cache has.
3. If the plan names a prefill worker, a handover fills the blocks (see `handover`); else the engine computes the prompt
   itself, in chunks, batched with everything else.
4. When its KV is here it takes part in every step. After each step, each router gets one message with the new tokens of
   all of its requests.
5. It ends by a stop condition, or is aborted: by its router, or with its router's stream.

A handover that fails costs time only: what has come stays, and the engine computes the rest.
"""

import asyncio
from functools import partial

from decode_worker.decode_request import DecodeRequest
from decode_worker.handover import Handover
from decode_worker.incoming_prompt import IncomingPrompt
from decode_worker.request_table import RequestTable
from decode_worker.router_session import RouterSession
from engine.outputs import StepOutput
from engine.schedule import Received
from protos import worker_pb2
from rpc.block_fills import BlockFills
from rpc.drain import Drain
from rpc.engine_host import EngineHost
from rpc.peers import Channels
from rpc.worker_counters import WorkerCounters


class DecodeRequests:
    """Owns every request that routers gave to this worker."""

    def __init__(
        self,
        host: EngineHost,
        channels: Channels,
        counters: WorkerCounters,
        drain: Drain,
        worker_id: str,
        deadline_s: float,
    ) -> None:
        self._host = host
        self._channels = channels
        self._counters = counters
        self._worker_id = worker_id
        self._deadline_s = deadline_s
        self._table = RequestTable(counters, drain)
        self._fills = BlockFills(host)
        host.listen(self._on_step)

    def submit(self, command: worker_pb2.GenerateCommand, session: RouterSession) -> None:
        """Takes a request; whatever becomes of it is told over the session."""
        entry = DecodeRequest.of(command, session, self._worker_id)
        if self._table.enter(entry):
            adding = self._host.call(lambda engine: engine.add(entry.request))
            adding.add_done_callback(partial(self._on_added, entry))

    def abort(self, request_id: str, session: RouterSession) -> None:
        """Ends a request; nothing more is told about it."""
        entry = self._table.find_named(request_id, session)
        if entry is not None:
            self._abort(entry)

    def abort_all(self, session: RouterSession) -> None:
        """Ends every request of a session."""
        for entry in self._table.of_session(session):
            self._abort(entry)

    async def close(self) -> None:
        """Aborts what is left; returns when nothing is written into any block any more."""
        for entry in self._table.all():
            self._abort(entry)
        await self._fills.close()

    def _abort(self, entry: DecodeRequest) -> None:
        request_id = entry.request.request_id
        self._host.call(lambda engine: engine.abort(request_id))
        if entry.handover is not None:
            entry.handover.cancel()
        self._table.end(entry)

    def _on_added(self, entry: DecodeRequest, adding: "asyncio.Future[None]") -> None:
        self._table.note_taken(entry)
        error = asyncio.CancelledError() if adding.cancelled() else adding.exception()
        if error is not None:
            self._table.fail(entry, error)

    def _on_step(self, step: StepOutput) -> None:
        self._table.tell(step)
        for request in step.receiving:
            entry = self._table.find(request.request_id)
            if entry is None:  # aborted in the meantime
                self._fills.refuse(request)
            else:
                self._begin_handover(entry)

    def _begin_handover(self, entry: DecodeRequest) -> None:
        """Has a prefill worker compute the request's prompt, and takes over its KV."""
        request = entry.request
        entry.served_by.decode_cached_tokens = request.num_cached_tokens
        entry.served_by.handed_over_tokens = request.num_tokens - request.num_computed_tokens
        incoming = IncomingPrompt(entry, self._host.finish_rule, self._abort)
        handover = incoming.handover = Handover(self._host, request, incoming, self._deadline_s)
        message = entry.prefill_request(self._host.fingerprint, request.num_computed_tokens)
        running = handover.run(self._channels, entry.command.prefill.address, message)

        def outcome(task: "asyncio.Task[None]") -> Received:
            return incoming.outcome(task, self._counters, self._worker_id)

        entry.handover = self._fills.start(request, running, outcome)
