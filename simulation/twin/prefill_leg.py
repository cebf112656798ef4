"""The part of a request's life at its prefill worker."""

from typing import Protocol

from baton.engine.errors import QueueFull
from baton.engine.request import Request
from baton.engine.scheduling.schedule import Received
from baton.simulation.twin.clock import Clock
from baton.simulation.twin.router import Route
from baton.simulation.twin.trace_request import TraceRequest


class Receiver(Protocol):
    """The caller of a prefill."""

    def prefilled(self, num_cached_tokens: int, arrives_s: float, leg: "PrefillLeg") -> None:
        """Take note that the prompt is computed. Its KV is received at `arrives_s`; then call `leg.release`."""
        ...

    def prefill_refused(self) -> None:
        """Take note that the prefill worker refuses the prompt."""
        ...


class PrefillLeg:
    """The request at the prefill worker; its blocks are read over the decode worker's link as they are computed."""

    def __init__(
        self, clock: Clock, route: Route, receiver: Receiver, request: TraceRequest, num_known_tokens: int
    ) -> None:
        """`num_known_tokens`: tokens of the prompt whose KV the decode worker has."""
        assert route.prefill is not None
        self._clock = clock
        self._worker = route.prefill
        self._source = route.source
        self._decode = route.decode
        self._number = route.number
        self._receiver = receiver
        self._request: Request = request.to_prefill(route.number)
        self._block_size = route.decode.description.block_size
        self._num_announced = num_known_tokens // self._block_size  # blocks whose KV the decode worker has or reads
        self._num_pulled_tokens = 0
        self._arrives_s = clock.now_s

    def begin(self) -> None:
        """Queue the prompt at the prefill worker, unless it drains or its queue is full."""
        worker, request = self._worker, self._request
        if worker.draining_s is not None:
            self._receiver.prefill_refused()
            return
        worker.taken.append(self._number)
        request.receives_kv = self._num_pullable() > 0
        try:
            worker.replica.add(request, self)
        except QueueFull:
            self._receiver.prefill_refused()
        else:
            worker.replica.counters.num_prefills += 1

    def release(self) -> None:
        """Free the blocks at the prefill worker."""
        self._worker.replica.release(self._request)

    def has_blocks(self) -> None:
        """Pull the prefix into the request's blocks."""
        num_tokens = self._num_pullable()
        num_blocks = max(0, num_tokens - self._request.num_computed_tokens) // self._block_size
        self._clock.at(self._worker.replica.core.link.reserve(num_blocks), self._has_pulled, num_tokens)

    def has_advanced(self) -> None:
        """Announce the full blocks of a computed chunk."""
        self._announce(self._request.num_computed_tokens // self._block_size)

    def has_ended(self) -> None:
        """Announce the last blocks and pass the first token on."""
        self._worker.replica.counters.num_prefills -= 1
        self._announce(-(-self._request.num_prompt_tokens // self._block_size))
        num_cached_tokens = max(self._num_pulled_tokens, self._request.num_cached_tokens)
        self._receiver.prefilled(num_cached_tokens, self._arrives_s, self)

    def _num_pullable(self) -> int:
        """Return how many tokens of the prompt the source has cached; 0 if this worker has as many."""
        if self._source is None:
            return 0
        there = self._source.replica.core.blocks.num_cached_tokens(self._request)
        here = self._worker.replica.core.blocks.num_cached_tokens(self._request)
        return there if there > here else 0

    def _has_pulled(self, num_tokens: int) -> None:
        self._num_pulled_tokens = num_tokens
        self._worker.replica.end_receive(self._request, Received(num_tokens))

    def _announce(self, num_blocks: int) -> None:
        if num_blocks > self._num_announced:
            self._arrives_s = self._decode.replica.core.link.reserve(num_blocks - self._num_announced)
            self._num_announced = num_blocks
