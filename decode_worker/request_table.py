"""The table of a decode worker's requests; the simulated decode worker uses it too."""

from collections.abc import Callable

from baton.decode_worker.decode_request import DecodeRequest, RequestName
from baton.decode_worker.remembered import RememberedOutputs
from baton.decode_worker.service import RouterSession
from baton.engine.outputs import StepOutput
from baton.engine.request import RequestId
from baton.protos.worker_pb2 import RecalledOutput
from baton.rpc.status import Conflict, code_number
from baton.worker.drain import Drain
from baton.worker.reporting import WorkerCounters


class RequestTable:
    """Requests by engine id, from the router's command until the last delta or the abort."""

    def __init__(
        self,
        counters: WorkerCounters,
        drain: Drain,
        abort_in_engine: Callable[[RequestId], object],
        remembered: RememberedOutputs,
    ) -> None:
        """`abort_in_engine` removes a request from the engine; no-op if the engine does not have it."""
        self._counters = counters
        self._drain = drain
        self._abort_in_engine = abort_in_engine
        self._remembered = remembered  # outputs of requests that have ended
        self._requests: dict[RequestId, DecodeRequest] = {}
        self._by_name: dict[RequestName, DecodeRequest] = {}
        self._by_resume_key: dict[bytes, DecodeRequest] = {}
        drain.listen(self.hand_off)

    def enter(self, entry: DecodeRequest) -> bool:
        """Add a request and return True; False for a repeated one, and on a draining worker, which hands it off."""
        if entry.name in self._by_name:
            return False
        if self._drain.has_begun:
            self.note_taken(entry)
            entry.say_handed_off()
            return False
        self._requests[entry.request.request_id] = self._by_name[entry.name] = entry
        if entry.recalled is not None:
            self._by_resume_key[entry.recalled.resume_key] = entry
        self._drain.enter()
        return True

    def note_taken(self, entry: DecodeRequest) -> None:
        """Record that the engine has the request or never will; load reports from now on account for it."""
        self._counters.taken.note(entry.session.router_id, entry.command.number)

    def fail(self, entry: DecodeRequest, error: BaseException) -> None:
        """End a request with an error, unless it has already ended."""
        if entry.trace is not None:
            entry.trace.failed(error)
        if self.end(entry):
            entry.say_error(code_number(error), str(error))

    def end(self, entry: DecodeRequest) -> bool:
        """Remove a request, and keep its output if it is resumable; return False if it is not in the table."""
        if self._requests.pop(entry.request.request_id, None) is None:
            return False
        del self._by_name[entry.name]
        if entry.recalled is not None:
            if self._by_resume_key.get(entry.recalled.resume_key) is entry:
                del self._by_resume_key[entry.recalled.resume_key]
            self._remembered.keep(entry.recalled)
        self._drain.leave()
        if entry.trace is not None:
            entry.trace.root.attributes.setdefault("gen_ai.response.finish_reasons", ("abort",))
            entry.trace.end()
        return True

    def find(self, request_id: RequestId) -> DecodeRequest | None:
        """Return the request with this engine id, or None."""
        return self._requests.get(request_id)

    def abort(self, entry: DecodeRequest) -> None:
        """End a request in any state, without another delta."""
        self._abort_in_engine(entry.request.request_id)
        if entry.handover is not None:
            entry.handover.cancel()
        self.end(entry)

    def recall(self, resume_key: bytes) -> RecalledOutput | None:
        """Return the output of a running or remembered request; None if there is none.

        A running request is aborted: the router that asks continues it, so its former router must not.
        """
        entry = self._by_resume_key.get(resume_key)
        if entry is None:
            return self._remembered.find(resume_key)
        self.abort(entry)
        error = Conflict("the request continues on another router, to which its client has reconnected")
        entry.say_error(code_number(error), str(error))
        return entry.recalled

    def abort_named(self, request_id: str, session: RouterSession) -> None:
        """Abort the request that the session's router calls `request_id`; if it was handed off, release its KV."""
        entry = self._by_name.get(RequestName(session.session_id, request_id))
        if entry is not None:
            self.abort(entry)
        else:
            self._drain.handed_off.release(request_id)

    def abort_session(self, session: RouterSession) -> None:
        """Abort every request of a router's session, and release the KV of those that were handed off."""
        for entry in [entry for entry in self._requests.values() if entry.session is session]:
            self.abort(entry)
        self._drain.handed_off.release_session(session.session_id)

    def abort_all(self) -> None:
        """Abort every request."""
        for entry in list(self._requests.values()):
            self.abort(entry)

    def hand_off(self) -> None:
        """Hand off every request: routers continue them on other workers, with the output so far."""
        for entry in list(self._requests.values()):
            if entry.trace is not None:
                entry.trace.root.event("handed_off")
            self.abort(entry)
            self._drain.handed_off.add(entry.command.request_id, entry.session.session_id)
            entry.say_handed_off()

    def tell(self, step: StepOutput) -> None:
        """Send a step's outputs to the routers, and end the requests that it finished."""
        for output in step.outputs:
            entry = self.find(output.request_id)
            if entry is not None and entry.trace is not None:
                entry.trace.note_step(step, output)
            if entry is not None and output.error is not None:
                self.fail(entry, output.error)
                if entry.handover is not None:
                    entry.handover.cancel()
            elif entry is not None:
                entry.say_output(output)
                if output.finish_reason is not None:
                    self.end(entry)
