"""Use of adapters by requests."""

from collections import Counter
from collections.abc import Callable

from baton.engine.request import Request, RequestStatus


class AdapterUse:
    """Adapters of the requests that have not ended, and of those in the batch: at most `max_loras` of these."""

    def __init__(self, max_loras: int = 1, on_unused: Callable[[int], None] = lambda _: None) -> None:
        """on_unused: called with the number of an adapter whose last request has ended."""
        self._max_loras = max_loras
        self._on_unused = on_unused
        self._holders: Counter[int] = Counter()  # requests by number of their adapter
        self._admitted: Counter[int] = Counter()  # those with blocks

    def hold(self, request: Request) -> None:
        """Keep the adapter of a new request until its end."""
        if request.adapter_number:
            self._holders[request.adapter_number] += 1

    def fits(self, request: Request) -> bool:
        """Return whether a waiting request can be admitted next to the adapters of the batch."""
        number = request.adapter_number
        return not number or number in self._admitted or len(self._admitted) < self._max_loras

    def admit(self, request: Request) -> None:
        """Count an admitted request; see `fits`."""
        if request.adapter_number:
            self._admitted[request.adapter_number] += 1

    def preempt(self, request: Request) -> None:
        """Count a request as no longer admitted."""
        if request.adapter_number:
            _decrease(self._admitted, request.adapter_number)

    def end(self, request: Request) -> None:
        """Release the adapter of a request that is about to end; no-op if it has ended."""
        if not request.adapter_number or request.status is RequestStatus.FINISHED:
            return
        if request.status is not RequestStatus.WAITING:
            self.preempt(request)
        if not _decrease(self._holders, request.adapter_number):
            self._on_unused(request.adapter_number)

    def is_used(self, number: int) -> bool:
        """Return whether a request that has not ended has the adapter."""
        return number in self._holders

    def check_integrity(self, admitted: list[Request]) -> None:
        """Assert that the adapters of the admitted requests are counted."""
        assert self._admitted == Counter(each.adapter_number for each in admitted if each.adapter_number)
        assert len(self._admitted) <= self._max_loras


def _decrease(counts: Counter[int], number: int) -> int:
    counts[number] -= 1
    left = counts[number]
    if not left:
        del counts[number]
    return left
