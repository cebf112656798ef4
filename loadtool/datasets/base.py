"""Dataset interface."""

from collections.abc import Iterator
from typing import Protocol

from baton.loadtool.request import LoadRequest


class Dataset(Protocol):
    """Requests in the order in which they are sent."""

    name: str
    has_times: bool  # whether every request has a due time

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """Yield the requests; may be called repeatedly.

        A different seed gives different tokens with the same lengths and sharing, so that runs do not hit each other's
        cached prompts.
        """
        ...
