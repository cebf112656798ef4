"""Requests that routers gave to a simulated worker; see `decode_worker.requests` for their life."""

from decode_worker.decode_request import DecodeRequest, engine_request_id
from decode_worker.router_session import RouterSession
from engine.errors import EngineError
from engine.outputs import StepOutput
from engine.request import RequestId
from protos import worker_pb2
from rpc.drain import Drain
from rpc.peers import Channels
from rpc.status import Unavailable, code_number
from rpc.worker_counters import WorkerCounters
from simulation.core import EngineCore
from simulation.fills import Fills
from simulation.remote_prompt import RemotePrompt


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
        self._drain = drain
        self._description = description
        self._requests: dict[RequestId, DecodeRequest] = {}
        self._fills = Fills(core)
        core.listen(self._on_step)

    def submit(self, command: worker_pb2.GenerateCommand, session: RouterSession) -> None:
        """Takes a request; whatever becomes of it is told over the session."""
        entry = DecodeRequest.of(command, session, self._description.worker_id)
        if entry.request.request_id in self._requests:
            return  # told twice
        try:
            if self._drain.has_begun:
                raise Unavailable("this worker is draining; ask another")
            self._core.add(entry.request)
        except (EngineError, Unavailable) as error:
            entry.say_error(code_number(error), str(error))
            return
        finally:
            self._counters.taken.note(session.router_id, command.number)
        self._requests[entry.request.request_id] = entry
        self._drain.enter()

    def abort(self, request_id: str, session: RouterSession) -> None:
        """Ends a request; nothing more is told about it."""
        entry = self._requests.get(engine_request_id(session, request_id))
        if entry is not None:
            self._abort(entry)

    def abort_all(self, session: RouterSession) -> None:
        """Ends every request of a session."""
        for entry in [entry for entry in self._requests.values() if entry.session is session]:
            self._abort(entry)

    async def close(self) -> None:
        """Aborts what is left; returns when every fill has ended."""
        for entry in list(self._requests.values()):
            self._abort(entry)
        await self._fills.close()

    def _abort(self, entry: DecodeRequest) -> None:
        self._core.abort(entry.request.request_id)
        if entry.handover is not None:
            entry.handover.cancel()
        self._end(entry)

    def _end(self, entry: DecodeRequest) -> None:
        if self._requests.pop(entry.request.request_id, None) is not None:
            self._drain.leave()

    def _on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            entry = self._requests.get(output.request_id)
            if entry is not None:
                entry.say_output(output)
                if output.finish_reason is not None:
                    self._end(entry)
        for request in step.receiving:
            entry = self._requests.get(request.request_id)
            if entry is None:  # aborted in the meantime
                self._fills.refuse(request)
            else:
                prompt = RemotePrompt(
                    self._core, entry, self._description.fingerprint, self._channels, self._counters, self._abort
                )
                entry.handover = self._fills.start(request, prompt)
