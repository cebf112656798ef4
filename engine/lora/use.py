"""Use of adapters by requests."""

from collections import Counter
from collections.abc import Callable

from baton.engine.lora.memory import AdapterMemory
from baton.engine.request import Request, RequestStatus


class AdapterUse:
    """Adapters of the requests that have not ended, and the places of the batch for adapters: `max_loras`.

    An adapter has a place while one of its requests is in the batch. It keeps the place when they are preempted, and
    gets it before the first one is admitted if its matrices must be read, or if others pass that request. Adapters
    with a place never leave memory.
    """

    def __init__(
        self,
        max_loras: int = 1,
        memory: AdapterMemory | None = None,
        on_missing: Callable[[int], None] = lambda _: None,
        on_unused: Callable[[int], None] = lambda _: None,
    ) -> None:
        """on_missing: called with the number of an adapter that is wanted and not in memory; on_unused: with that of
        one whose last request has ended.
        """
        self._max_loras = max_loras
        self._memory = memory or AdapterMemory(max_loras)
        self._on_missing = on_missing
        self._on_unused = on_unused
        self._holders: Counter[int] = Counter()  # requests by number of their adapter
        self._admitted: Counter[int] = Counter()  # those with blocks
        self._reserved: set[int] = set()  # adapters with a place and no admitted request
        self._is_full = False  # a request waits for a place, which later ones must not take

    def hold(self, request: Request) -> None:
        """Keep the adapter of a new request until its end, and begin to read it if there is room."""
        if number := request.adapter_number:
            self._holders[number] += 1
            if number not in self._memory:
                self._on_missing(number)

    def begin_admissions(self) -> None:
        """Start a pass over the waiting requests, in their order; see `may_start`."""
        self._is_full = False

    def may_start(self, request: Request) -> bool:
        """Return whether a waiting request can be admitted next to the adapters of the batch.

        Once a request has found no place, later ones wait behind it unless their adapter has a reserved place.
        """
        number = request.adapter_number
        if not number:
            return True
        if number not in self._reserved:
            is_new = number not in self._admitted
            self._is_full |= is_new and len(self._admitted) + len(self._reserved) >= self._max_loras
            if self._is_full:
                return False
        if number in self._memory:
            return True
        self._reserved.add(number)
        self._on_missing(number)
        return number in self._memory

    def reserve(self, request: Request) -> None:
        """Keep a place for a request that may start, and that others pass."""
        if request.adapter_number and request.adapter_number not in self._admitted:
            self._reserved.add(request.adapter_number)

    def admit(self, request: Request) -> None:
        """Count an admitted request, and set which matrices it uses; see `may_start`."""
        if request.adapter_number:
            self._reserved.discard(request.adapter_number)
            self._admitted[request.adapter_number] += 1
            request.adapter_matrices = self._memory.use(request.adapter_number)

    def preempt(self, request: Request) -> None:
        """Count a request as no longer admitted; its adapter keeps the place."""
        if request.adapter_number and not _decrease(self._admitted, request.adapter_number):
            self._reserved.add(request.adapter_number)

    def end(self, request: Request) -> None:
        """Release the adapter of a request that is about to end; no-op if it has ended."""
        number = request.adapter_number
        if not number or request.status is RequestStatus.FINISHED:
            return
        if request.status is not RequestStatus.WAITING:
            _decrease(self._admitted, number)
        if not _decrease(self._holders, number):
            self._reserved.discard(number)
            self._on_unused(number)

    def is_used(self, number: int) -> bool:
        """Return whether a request that has not ended has the adapter."""
        return number in self._holders

    def has_place(self, number: int) -> bool:
        """Return whether the adapter has a place in the batch."""
        return number in self._admitted or number in self._reserved

    def check_integrity(self, admitted: list[Request]) -> None:
        """Assert that the adapters of the admitted requests are counted, and have a place and matrices."""
        assert self._admitted == Counter(each.adapter_number for each in admitted if each.adapter_number)
        assert len(self._admitted) + len(self._reserved) <= self._max_loras
        assert self._reserved.isdisjoint(self._admitted)
        assert self._reserved <= self._holders.keys()
        assert all(number in self._memory for number in self._admitted)
        self._memory.check_integrity()


def _decrease(counts: Counter[int], number: int) -> int:
    counts[number] -= 1
    left = counts[number]
    if not left:
        del counts[number]
    return left
