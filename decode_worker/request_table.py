"""The requests that a decode worker has from routers, whoever computes them."""

from collections.abc import Callable

from baton.decode_worker.decode_request import DecodeRequest, engine_request_id
from baton.decode_worker.remembered import RememberedOutputs
from baton.decode_worker.service import RouterSession
from baton.engine.outputs import StepOutput
from baton.engine.request import RequestId
from baton.protos.worker_pb2 import RecalledOutput
from baton.rpc.status import Conflict, code_number
from baton.worker.drain import Drain
from baton.worker.reporting import WorkerCounters


class RequestTable:
    """Owns who is waiting for what; a request is in it from its command until its last news or its abort."""

    def __init__(
        self,
        counters: WorkerCounters,
        drain: Drain,
        abort_in_engine: Callable[[RequestId], object],
        remembered: RememberedOutputs,
    ) -> None:
        """`abort_in_engine` takes a request out of the engine, if it is there."""
        self._counters = counters
        self._drain = drain
        self._abort_in_engine = abort_in_engine
        self._remembered = remembered  # of those that have ended
        self._requests: dict[RequestId, DecodeRequest] = {}
        self._by_resume_key: dict[bytes, DecodeRequest] = {}
        drain.listen(self.hand_off)

    def enter(self, entry: DecodeRequest) -> bool:
        """Takes a request, unless it came before, or the worker drains: then another one is to have it."""
        if entry.request.request_id in self._requests:
            return False
        if self._drain.has_begun:
            self.note_taken(entry)
            entry.say_handed_off()
            return False
        self._requests[entry.request.request_id] = entry
        if entry.recalled is not None:
            self._by_resume_key[entry.recalled.resume_key] = entry
        self._drain.enter()
        return True

    def note_taken(self, entry: DecodeRequest) -> None:
        """The engine has the request, or nobody will have it: loads that are told from now on include it."""
        self._counters.taken.note(entry.session.router_id, entry.command.number)

    def fail(self, entry: DecodeRequest, error: BaseException) -> None:
        """Ends a request, unless it has ended, and tells why."""
        if self.end(entry):
            entry.say_error(code_number(error), str(error))

    def end(self, entry: DecodeRequest) -> bool:
        """Forgets a request; False if that was done before."""
        if self._requests.pop(entry.request.request_id, None) is None:
            return False
        if entry.recalled is not None:
            if self._by_resume_key.get(entry.recalled.resume_key) is entry:
                del self._by_resume_key[entry.recalled.resume_key]
            self._remembered.keep(entry.recalled)
        self._drain.leave()
        return True

    def find(self, request_id: RequestId) -> DecodeRequest | None:
        """The request that the engine calls so."""
        return self._requests.get(request_id)

    def abort(self, entry: DecodeRequest) -> None:
        """Ends a request wherever it stands; nothing more is told about it."""
        self._abort_in_engine(entry.request.request_id)
        if entry.handover is not None:
            entry.handover.cancel()
        self.end(entry)

    def recall(self, resume_key: bytes) -> RecalledOutput | None:
        """Return the output of a request that runs or ran here; None if there is none.

        One that runs is ended: the router that asks goes on with it, and the one that had it must not.
        """
        entry = self._by_resume_key.get(resume_key)
        if entry is None:
            return self._remembered.find(resume_key)
        self.abort(entry)
        error = Conflict("the request was taken over by another router, to which its client has come")
        entry.say_error(code_number(error), str(error))
        return entry.recalled

    def abort_named(self, request_id: str, session: RouterSession) -> None:
        """The same for the request that the session's router calls so, if it has not ended."""
        entry = self.find(engine_request_id(session, request_id))
        if entry is not None:
            self.abort(entry)

    def abort_session(self, session: RouterSession) -> None:
        """The same for every request of a router's stream."""
        for entry in [entry for entry in self._requests.values() if entry.session is session]:
            self.abort(entry)

    def abort_all(self) -> None:
        """The same for every request."""
        for entry in list(self._requests.values()):
            self.abort(entry)

    def hand_off(self) -> None:
        """Gives every request away: routers send them to others, with what they have so far."""
        for entry in list(self._requests.values()):
            self.abort(entry)
            entry.say_handed_off()

    def tell(self, step: StepOutput) -> None:
        """Tells what the step brought, and ends the requests that it finished."""
        for output in step.outputs:
            entry = self.find(output.request_id)
            if entry is not None:
                entry.say_output(output)
                if output.finish_reason is not None:
                    self.end(entry)
