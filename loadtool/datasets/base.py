"""What a dataset is."""

from collections.abc import Iterator
from typing import Protocol

from baton.loadtool.request import LoadRequest


class Dataset(Protocol):
    """Requests in the order in which they are sent."""

    name: str
    has_times: bool  # whether every request says when it is due

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """The requests, as often as asked; another seed gives other tokens with the same lengths and sharing, so that
        a cache that knows the ones has nothing of the others.
        """
        ...
