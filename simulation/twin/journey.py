"""The life of a request in the twin.

1. It arrives at its time of the trace, and the router chooses a plan for it.
2. The decode worker admits it. With a local plan it computes the prompt itself, and step 7 follows.
3. Otherwise, once it has blocks, it asks the prefill worker, which may pull the prefix from a third worker first.
4. The blocks of each computed chunk are sent over the decode worker's link.
5. The last chunk brings the first token, which is passed to the client at once.
6. With the last block the request joins the batch, and the prefill worker frees its own blocks.
7. With its last token it ends.
"""

from collections.abc import Callable
from dataclasses import dataclass

from baton.engine.errors import QueueFull
from baton.engine.outputs import SampledToken
from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.router.errors import NoWorker
from baton.router.metrics.traffic import uncached_tokens
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.prefill_leg import PrefillLeg
from baton.simulation.twin.record import Record
from baton.simulation.twin.router import Route, TwinRouter
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.traffic_window import TrafficWindow


@dataclass(frozen=True, slots=True)
class Stage:
    """The environment that all requests of a run share."""

    clock: Clock
    machine: Machine
    router: TwinRouter
    traffic: TrafficWindow
    note_end: Callable[[], None]  # called once for each request that has ended or was refused


class Journey:
    """A request from its arrival to its end, and the engine's request at its decode worker."""

    __slots__ = ("_opened_s", "_reached_s", "_request", "_route", "_stage", "_traced", "record")

    def __init__(self, stage: Stage, request: TraceRequest) -> None:
        self.record = Record(request.due_s, request.num_prompt_tokens, request.num_output_tokens)
        self._stage = stage
        self._traced = request
        self._route: Route | None = None
        self._request: Request | None = None  # at the decode worker
        self._reached_s = self._opened_s = 0.0  # when the decode worker got it, and when it called the prefill worker

    def begin(self) -> None:
        """Route the request when it arrives."""
        stage, request = self._stage, self._traced
        try:
            route = stage.router.route(request)
        except NoWorker as error:
            self._refuse(str(error))
            return
        self._route = route
        self.record.is_remote = route.prefill is not None
        num_uncached = uncached_tokens(route.plan, route.routed)
        stage.traffic.note_arrival(stage.clock.now_s, request.num_prompt_tokens, num_uncached, self.record.is_remote)
        delay_s = stage.router.queue_s(stage.machine.request_s) + stage.machine.overhead_s / 2
        stage.clock.after(delay_s, self._reach_decode)

    def has_blocks(self) -> None:
        """Ask the prefill worker: the decode worker has blocks for the KV."""
        self._opened_s = self._stage.clock.now_s
        self._stage.clock.after(self._stage.machine.handover_s, self._reach_prefill)

    def has_advanced(self) -> None:
        """Pass the first token on once the decode worker has sampled it."""
        assert self._request is not None
        if self.record.num_received_tokens == 0 and self._request.num_output_tokens > 0:
            self.record.num_cached_tokens = self._request.num_cached_tokens
            self._pass_first_token()

    def has_ended(self) -> None:
        """End the request: the decode worker has sampled its last token."""
        assert self._request is not None
        if self.record.num_received_tokens == 0:  # it is the first as well
            self.record.num_cached_tokens = self._request.num_cached_tokens
            self._pass_first_token()
        self.record.num_received_tokens = self._request.num_output_tokens
        self._stage.clock.after(self._stage.machine.overhead_s / 2, self._end)

    def prefilled(self, num_cached_tokens: int, arrives_s: float, leg: PrefillLeg) -> None:
        """Pass the first token on; the request joins the batch with its last block, at `arrives_s`."""
        self.record.num_cached_tokens = num_cached_tokens
        self._pass_first_token()
        if self._traced.num_output_tokens == 1:
            self._stage.clock.at(arrives_s, self._release, leg)
            self._stage.clock.after(self._stage.machine.overhead_s / 2, self._end)
        else:
            self._stage.clock.at(arrives_s + self._stage.machine.join_s, self._join, leg)

    def prefill_refused(self) -> None:
        """Compute the prompt at the decode worker, as the prefill worker does not take it."""
        assert self._route is not None
        assert self._request is not None
        self.record.is_remote = False
        self._route.decode.replica.end_receive(self._request, Received(0))

    def _reach_decode(self) -> None:
        route = self._route
        assert route is not None
        self._reached_s = self._stage.clock.now_s
        route.decode.taken.append(route.number)
        self._request = self._traced.to_engine(route.number, receives_kv=route.prefill is not None)
        try:
            route.decode.replica.add(self._request, self)
        except QueueFull as error:
            self._refuse(str(error))

    def _reach_prefill(self) -> None:
        assert self._route is not None
        assert self._request is not None
        PrefillLeg(self._stage.clock, self._route, self, self._traced, self._request.num_cached_tokens).begin()

    def _pass_first_token(self) -> None:
        self.record.num_received_tokens = 1
        self._stage.clock.after(self._stage.machine.overhead_s / 2, self._show_first_token)

    def _show_first_token(self) -> None:
        route, now_s = self._route, self._stage.clock.now_s
        assert route is not None
        self.record.first_s = now_s
        route.share.computed()
        self._stage.router.has_changed(route)
        if self.record.is_remote and route.prefill is not None:  # otherwise it refused the prompt
            wait_s = self._opened_s - self._reached_s  # for blocks; no prefill worker could have shortened it
            route.prefill.latencies.note(now_s, self.record.ttft_s - wait_s)

    def _join(self, leg: PrefillLeg) -> None:
        """Join the batch: all KV is here."""
        assert self._route is not None
        assert self._request is not None
        leg.release()
        received = Received(self._request.num_tokens, SampledToken(self._request.token_ids[-1]))
        self._route.decode.replica.end_receive(self._request, received)

    def _release(self, leg: PrefillLeg) -> None:
        """Free the blocks of a request with a single token, once they are no longer read."""
        assert self._route is not None
        assert self._request is not None
        leg.release()
        self._route.decode.replica.release(self._request)
        self._route.decode.replica.end_receive(self._request, Received(0))

    def _end(self) -> None:
        route, record, now_s = self._route, self.record, self._stage.clock.now_s
        assert route is not None
        record.last_s = now_s
        record.num_ends += 1
        route.share.remove()
        self._stage.router.has_changed(route)
        self._stage.router.has_answered(record.num_received_tokens)
        self._stage.traffic.note_end(now_s, record.num_received_tokens)
        if record.num_output_tokens > 1:
            route.decode.latencies.note(now_s, record.tpot_s)
        self._stage.note_end()

    def _refuse(self, why: str) -> None:
        self.record.refusal = why
        self.record.num_ends += 1
        if self._route is not None:
            self._route.share.remove()
            self._stage.router.has_changed(self._route)
        self._stage.note_end()
