"""The life of a request in a decode worker.

1. A router sends a command on its stream. The engine queues the request, or refuses it and the router gets the error.
2. The engine admits the request when it has blocks for all its tokens. It reuses cached prefix blocks.
3. The remaining blocks are filled in one of four ways:
   - The plan names a prefill worker: a handover fills them (see `handover.py`).
   - The plan names only a worker with a longer cached prefix: that prefix is pulled; the engine computes the rest.
   - It names neither, and a store below the pool has a longer prefix: that is fetched if it pays; the engine computes
     the rest.
   - Otherwise the engine computes the prompt itself, in chunks, batched with the other requests.
4. Once its KV is complete, the request decodes in every step. After each step, each router gets one message with the
   new tokens of all of its requests.
5. The request ends by a stop condition or an abort: its router sends an abort, or its router's stream ends. A draining
   worker hands off the requests that do not finish in time. Its cache keeps their KV, and the next worker pulls it.

A failed handover costs only time. The blocks received so far stay, the plan's next prefill worker is asked for the
rest, and if there is none the engine computes it.
"""

import asyncio
import itertools
import logging
from functools import partial

from baton.decode_worker.decode_request import ENGINE_IDS, DecodeRequest
from baton.decode_worker.handover import HandoverLimits
from baton.decode_worker.remembered import RememberedOutputs
from baton.decode_worker.remote_prefill import HandoverReporter, RemotePrefill
from baton.decode_worker.request_table import RequestTable
from baton.decode_worker.service import RouterSession
from baton.decode_worker.shared_images import SharedImages
from baton.engine.outputs import StepOutput
from baton.engine.scheduling.schedule import Received
from baton.process.request_scope import request_scope
from baton.protos import worker_pb2
from baton.rpc.peers import Channels
from baton.rpc.tracing.base import Tracer
from baton.worker.base import NO_STORES, Host, StoredKV, Stores
from baton.worker.drain import Drain
from baton.worker.kv.prefix_pull import PrefixPull
from baton.worker.kv.receives import KVReceives
from baton.worker.reporting import WorkerCounters
from baton.worker.request_trace import WorkerTracing

logger = logging.getLogger(__name__)


class DecodeRequests:
    """The requests that routers have sent to this worker, and the tasks that fill their blocks."""

    def __init__(
        self,
        host: Host,
        channels: Channels,
        counters: WorkerCounters,
        drain: Drain,
        worker_id: str,
        limits: HandoverLimits,
        takes_handovers: bool = True,
        orphan_timeout_s: float = 0.0,
        stores: Stores = NO_STORES,
        tracer: Tracer | None = None,
    ) -> None:
        """Serve requests with the engine of `host`.

        limits: of handovers; `read_s` also limits each read of a prefix pull.
        takes_handovers: False ignores the prefill workers of commands; the engine computes every prompt.
        orphan_timeout_s: how long the output of a resumable request is kept after its end; 0 keeps none.
        tracer: exports the spans of sampled requests.
        """
        self._host = host
        self._channels = channels
        self._counters = counters
        self._worker_id = worker_id
        self._limits = limits
        self._takes_handovers = takes_handovers
        self._stores = stores
        self._tracing = WorkerTracing(worker_id, tracer)
        self._remembered = RememberedOutputs(counters, orphan_timeout_s)
        self._table = RequestTable(
            counters,
            drain,
            lambda request_id: host.call(lambda engine: engine.abort(request_id)),
            self._remembered,
        )
        self._fills = KVReceives(host, drain)
        self._numbers = itertools.count(1)
        self._images = SharedImages()
        host.listen(self._on_step)

    def submit(self, command: worker_pb2.GenerateCommand, session: RouterSession) -> None:
        """Start a request; its deltas, errors included, go to the session."""
        if not self._takes_handovers:
            command.ClearField("prefill")
        number, origin = next(self._numbers), self._host.origin
        entry = DecodeRequest.of(command, session, self._worker_id, number, origin, self._images)
        if not self._table.enter(entry):
            return
        entry.trace = self._tracing.begin("decode", command.traceparent, command.tracestate)
        with request_scope(command.request_id):
            logger.debug("a request of %d tokens has arrived", entry.request.num_tokens)
            if self._stores is NO_STORES:
                self._add(entry)
            else:  # a task of the request's, like its fills: an abort cancels it
                entry.handover = finding = asyncio.create_task(self._find_stored(entry))
                finding.add_done_callback(partial(self._on_found, entry))

    def abort(self, request_id: str, session: RouterSession) -> None:
        """Abort a request; no more deltas follow."""
        self._table.abort_named(request_id, session)

    def abort_all(self, session: RouterSession) -> None:
        """Abort every request of a session."""
        self._table.abort_session(session)

    def recall(self, resume_key: bytes) -> worker_pb2.RecalledOutput | None:
        """Return the output of a running or remembered request, or None; a running one is aborted."""
        return self._table.recall(resume_key)

    async def close(self) -> None:
        """Abort all requests. Return when no transfer writes into any block any more."""
        self._table.abort_all()
        self._remembered.close()
        await self._fills.close()

    async def _find_stored(self, entry: DecodeRequest) -> None:
        entry.stored = await self._stores.find(entry.request)

    def _on_found(self, entry: DecodeRequest, finding: "asyncio.Task[None]") -> None:
        if not finding.cancelled() and (error := finding.exception()) is not None:
            logger.error("a lookup of stored KV failed", exc_info=error)
        self._add(entry)

    def _add(self, entry: DecodeRequest) -> None:
        """Queue a request in the engine, unless it has ended in the meantime."""
        if self._table.find(entry.request.request_id) is not entry:
            self._table.note_taken(entry)
            return
        stored = entry.stored
        adding = stored.add() if stored is not None else self._host.call(lambda engine: engine.add(entry.request))
        adding.add_done_callback(partial(self._on_added, entry))

    def _on_added(self, entry: DecodeRequest, adding: "asyncio.Future[None]") -> None:
        self._table.note_taken(entry)
        error = asyncio.CancelledError() if adding.cancelled() else adding.exception()
        if error is not None:
            self._table.fail(entry, error)

    def _on_step(self, step: StepOutput) -> None:
        self._table.tell(step)
        for request in step.receiving:
            if not request.request_id.startswith(ENGINE_IDS):
                continue
            entry = self._table.find(request.request_id)
            if entry is not None and entry.trace is not None:
                entry.trace.admitted(step.finished_at_s)
            if entry is None:  # aborted in the meantime
                self._fills.refuse(request)
            else:
                with request_scope(entry.command.request_id):
                    self._begin_fill(entry)

    def _begin_fill(self, entry: DecodeRequest) -> None:
        """Start the handover or the prefix pull that the request's plan names, or the fetch of stored KV."""
        entry.served_by.decode_cached_tokens = entry.request.num_cached_tokens
        if entry.command.HasField("prefill"):
            entry.handover = self._hand_over(entry)
        elif entry.stored is not None:
            entry.handover = self._fetch(entry, entry.stored)
        else:
            entry.handover = self._pull_prefix(entry)

    def _hand_over(self, entry: DecodeRequest) -> "asyncio.Task[None]":
        """Start the remote prefill of the prompt."""
        request = entry.request
        entry.served_by.handed_over_tokens = (
            request.num_tokens - request.num_computed_tokens
        )  # expected; corrected at the end
        incoming = HandoverReporter(entry, self._host.finish_rule, self._counters, self._table.abort)
        fill = RemotePrefill(self._host, self._channels, incoming, self._limits)

        def outcome(task: "asyncio.Task[None]") -> Received:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log what HandoverReporter has logged
            incoming.ended()
            return fill.received

        return self._fills.start(request, fill.run(), outcome)

    def _fetch(self, entry: DecodeRequest, stored: StoredKV) -> "asyncio.Task[None]":
        """Start fetching what stores below the pool have; the engine computes the rest."""

        def outcome(task: "asyncio.Task[None]") -> Received:
            received = stored.outcome(task)
            entry.served_by.stored_tokens.update(stored.tokens_by_tier)
            return received

        return self._fills.start(entry.request, stored.run(), outcome)

    def _pull_prefix(self, entry: DecodeRequest) -> "asyncio.Task[None]":
        """Start pulling cached prefix blocks from another worker; the engine computes the rest."""
        pull = PrefixPull(self._host, entry.request, entry.command.prefix_source, self._limits.read_s)

        def outcome(task: "asyncio.Task[None]") -> Received:
            entry.served_by.prefix_pulled_tokens = pull.num_pulled_tokens
            return pull.outcome(task, self._counters)

        return self._fills.start(entry.request, pull.run(self._channels), outcome)
