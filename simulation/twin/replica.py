"""One replica: a simulated engine on the twin's clock."""

from collections.abc import Callable
from typing import Protocol

from baton.engine.kv.prefix_cache import CacheChanges
from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.scheduling.schedule import Received
from baton.protos.worker_pb2 import WorkerLoad
from baton.simulation.engine.clock import Clock
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.spec import WorkerSpec
from baton.worker.reporting import WorkerCounters, load_report


class Owner(Protocol):
    """The part of a request's life that a replica's steps move on."""

    def has_blocks(self) -> None:
        """Take note that a request that receives its KV has blocks for it."""

    def has_advanced(self) -> None:
        """Take note that more of the request's tokens are computed."""

    def has_ended(self) -> None:
        """Take note that the request's last token is sampled."""


class Replica:
    """The engine of one worker, and the owners of its requests.

    Its core generates no tokens, so that all steps up to the next change are one event.
    """

    def __init__(self, clock: Clock, spec: WorkerSpec) -> None:
        """Create an idle replica."""
        self.core = EngineCore(spec, clock, tokens=None)
        self.counters = WorkerCounters()
        self.counters.reads.note(spec.block_bytes, spec.block_bytes / spec.link_bytes_per_s)  # known from the start
        self._cache = self.core.cache_feed.subscribe()
        self._note_change: Callable[[], None] = lambda: None
        self._owners: dict[RequestId, Owner] = {}  # of requests that have not ended
        self.core.listen(self._on_step)

    def report_to(self, note_change: Callable[[], None]) -> None:
        """Call `note_change` from now on when load or cache have changed; the next report has the whole cache."""
        self._note_change = note_change
        self._cache.close()
        self._cache = self.core.cache_feed.subscribe()

    @property
    def is_idle(self) -> bool:
        """Whether no request waits, runs or holds blocks."""
        return not self.core.has_work and self.core.blocks.cache.pool.num_free == self.core.blocks.num_usable

    @property
    def num_running(self) -> int:
        """Requests in the batch or about to join it."""
        return len(self.core.scheduler.running)

    @property
    def num_unadmitted(self) -> int:
        """Requests that have no blocks."""
        return len(self.core.scheduler.waiting)

    @property
    def num_held_tokens(self) -> int:
        """Tokens in the blocks of running requests; blocks that several share count once."""
        blocks = {block for request in self.core.scheduler.running for block in request.block_table}
        return len(blocks) * self.core.spec.block_size

    def add(self, request: Request, owner: Owner) -> None:
        """Queue a request. Raises QueueFull, and InvalidRequest if it could never run."""
        self.core.add(request)
        self._owners[request.request_id] = owner
        self._note_change()

    def end_receive(self, request: Request, received: Received) -> None:
        """End the receive of a request's KV; missing KV is computed here."""
        self.core.end_receive(request.request_id, received)
        self._note_change()

    def release(self, request: Request) -> None:
        """Free the blocks of a request that kept them after its end, or that needs no KV any more."""
        self._owners.pop(request.request_id, None)
        self.core.abort(request.request_id)
        self._note_change()

    def load(self) -> WorkerLoad:
        """Return the load report of a worker with this engine."""
        return load_report(self.core.load(), self.counters)

    def take_cache_changes(self) -> CacheChanges:
        """Return what was stored in the prefix cache and evicted since the last call."""
        return self._cache.take()

    def _on_step(self, step: StepOutput) -> None:
        self._note_change()
        for request in step.receiving:
            self._owners[request.request_id].has_blocks()
        for output in step.outputs:
            if output.finish_reason is None:
                self._owners[output.request_id].has_advanced()
            else:
                self._owners.pop(output.request_id).has_ended()
