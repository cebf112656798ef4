"""Requests in service order."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from baton.engine.request import Request, RequestStatus


def service_order(request: Request) -> tuple[int, int]:
    """Return the sort key of a request: priority first, then arrival."""
    return request.priority, request.arrival


class OrderedRequests:
    """Requests sorted by `service_order`."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._requests)

    def add(self, request: Request) -> None:
        """Insert a request at its place in the order."""
        insort(self._requests, request, key=service_order)

    def remove(self, request: Request) -> None:
        """Remove a request that is in the queue."""
        index = bisect_left(self._requests, service_order(request), key=service_order)
        assert self._requests[index] is request
        del self._requests[index]

    def check_integrity(self, requests: Iterable[Request], status: RequestStatus) -> None:
        """Assert that these are the requests of this status."""
        expected = {id(request) for request in requests if request.status is status}
        assert {id(request) for request in self} == expected, f"the {status.value} queue is wrong"
