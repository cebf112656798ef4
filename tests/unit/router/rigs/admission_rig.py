"""An admission with a test clock, and requests for it."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from baton.router.admission.admission import Admission
from baton.router.admission.inflight_limit import AdmissionLimits
from baton.router.admission.metrics import AdmissionMetrics
from baton.router.errors import Overloaded
from baton.router.metrics.traffic import Arrivals
from baton.router.request_context import RequestContext
from baton.rpc.status import Unavailable


class Workers:
    """Decode workers and workers for embeddings that run this many sequences at once."""

    def __init__(self, num_seqs: int | None = None, num_embedding_seqs: int | None = 0) -> None:
        self.num = num_seqs
        self.num_embedding = num_embedding_seqs
        self.changed = asyncio.Event()
        self.ended: Unavailable | None = None

    def num_seqs(self) -> int | None:
        return self.num

    def num_embedding_seqs(self) -> int | None:
        return self.num_embedding

    def has_decoder(self, fingerprint: str) -> bool:
        assert not fingerprint
        return self.num != 0

    async def wait_change(self, timeout_s: float) -> None:
        if self.ended is not None:
            raise self.ended
        try:
            await asyncio.wait_for(self.changed.wait(), timeout_s)
        except TimeoutError:
            return
        self.changed.clear()

    def become(self, num_seqs: int | None, num_embedding_seqs: int | None = 0) -> None:
        self.num, self.num_embedding = num_seqs, num_embedding_seqs
        self.changed.set()


class Rig:
    """An admission with a test clock, and the requests sent to it."""

    def __init__(
        self, max_inflight: int = 2, max_queue: int = 100, workers: Workers | None = None, **limits: float
    ) -> None:
        self.registry = CollectorRegistry()
        self.workers = workers or Workers()
        self.now_s = 0.0

        def clock() -> float:
            return self.now_s

        self.admission = Admission(
            AdmissionLimits(max_inflight=max_inflight, max_queue=max_queue, **limits),
            self.workers,
            AdmissionMetrics(self.registry, "model"),
            Arrivals(60, clock),
            clock,
        )
        self.order: list[str] = []  # names of the requests, as they were admitted
        self._ends: dict[str, asyncio.Event] = {}

    def send(
        self,
        name: str,
        num_completions: int = 1,
        *,
        key: str = "",
        priority: int = 0,
        timeout_s: float | None = None,
        generates: bool = True,
    ) -> asyncio.Task[None]:
        """Start a request that runs until `end`."""
        deadline_s = None if timeout_s is None else self.now_s + timeout_s
        context = RequestContext(fairness_key=key, priority=priority, deadline_s=deadline_s)
        self._ends[name] = asyncio.Event()

        async def request() -> None:
            async with self.admission.admit(num_completions, context, generates):
                self.order.append(name)
                await self._ends[name].wait()

        return asyncio.create_task(request())

    def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()

    def metric(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(f"baton:{name}", {"model_name": "model", **labels})
        assert value is not None
        return value

    def refusals(self) -> dict[str, float]:
        """Return the counts by reason."""
        samples = (sample for family in self.registry.collect() for sample in family.samples)
        refused = (each for each in samples if each.name == "baton:router_refusals_total" and each.value)
        return {each.labels["reason"]: each.value for each in refused}


async def settle() -> None:
    """Run all tasks until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@contextmanager
def overloaded(text: str) -> Iterator[list[int]]:
    """Expect Overloaded with this text; yields a list with its Retry-After."""
    seen: list[int] = []
    with pytest.raises(Overloaded, match=text) as caught:
        yield seen
    seen.append(caught.value.retry_after_s)
