"""Requests that routers gave to a simulated worker; see `baton.decode_worker.requests` for their life."""

from baton.decode_worker.decode_request import ENGINE_IDS, DecodeRequest
from baton.decode_worker.remembered import RememberedOutputs
from baton.decode_worker.request_table import RequestTable
from baton.decode_worker.service import RouterSession
from baton.engine.errors import EngineError
from baton.engine.outputs import StepOutput
from baton.protos import worker_pb2
from baton.rpc.peers import Channels
from baton.simulation.engine.core import EngineCore
from baton.simulation.workers.fills import Fill, Fills
from baton.simulation.workers.prefix_pull import PrefixPull
from baton.simulation.workers.remote_prompt import RemotePrompt
from baton.worker.drain import Drain
from baton.worker.reporting import WorkerCounters

ORPHAN_TIMEOUT_S = 10.0  # a real worker's default


class SimulatedDecodeRequests:
    """Owns every request that routers gave to this worker."""

    def __init__(
        self,
        core: EngineCore,
        channels: Channels,
        counters: WorkerCounters,
        drain: Drain,
        description: worker_pb2.WorkerDescription,
    ) -> None:
        self._core = core
        self._channels = channels
        self._counters = counters
        self._description = description
        self._remembered = RememberedOutputs(counters, ORPHAN_TIMEOUT_S)
        self._table = RequestTable(counters, drain, core.abort, self._remembered)
        self._fills = Fills(core)
        core.listen(self._on_step)

    def submit(self, command: worker_pb2.GenerateCommand, session: RouterSession) -> None:
        """Takes a request; whatever becomes of it is told over the session."""
        entry = DecodeRequest.of(command, session, self._description.worker_id)
        if self._table.enter(entry):
            self._table.note_taken(entry)
            try:
                self._core.add(entry.request)
            except EngineError as error:
                self._table.fail(entry, error)

    def abort(self, request_id: str, session: RouterSession) -> None:
        """Ends a request; nothing more is told about it."""
        self._table.abort_named(request_id, session)

    def abort_all(self, session: RouterSession) -> None:
        """Ends every request of a session."""
        self._table.abort_session(session)

    def recall(self, resume_key: bytes) -> worker_pb2.RecalledOutput | None:
        """Return the output of a request that runs or ran here, and end it if it runs."""
        return self._table.recall(resume_key)

    async def close(self) -> None:
        """Aborts what is left; returns when every fill has ended."""
        self._table.abort_all()
        self._remembered.close()
        await self._fills.close()

    def _on_step(self, step: StepOutput) -> None:
        self._table.tell(step)
        for request in step.receiving:
            if not request.request_id.startswith(ENGINE_IDS):
                continue
            entry = self._table.find(request.request_id)
            if entry is None:  # aborted in the meantime
                self._fills.refuse(request)
            else:
                entry.handover = self._fills.start(request, self._fill(entry))

    def _fill(self, entry: DecodeRequest) -> Fill:
        """Who brings the request's KV: the prefill worker of its plan, or a worker that has the prefix."""
        fingerprint, command = self._description.fingerprint, entry.command
        if command.HasField("prefill"):
            return RemotePrompt(self._core, entry, fingerprint, self._channels, self._counters, self._table.abort)
        entry.served_by.decode_cached_tokens = entry.request.num_cached_tokens
        return PrefixPull(
            entry.request,
            self._core.spec,
            self._core.link,
            self._channels,
            self._counters,
            command.prefix_source,
            fingerprint,
        )
