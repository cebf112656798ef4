"""The orderly end of a worker."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Drain:
    """Counts the requests that a worker has taken, and lets it end when none is left."""

    def __init__(self) -> None:
        self._num_requests = 0
        self._begun = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def has_begun(self) -> bool:
        """Whether new requests are refused."""
        return self._begun.is_set()

    @property
    def num_requests(self) -> int:
        """Requests taken and not ended."""
        return self._num_requests

    def begin(self) -> None:
        """From now on new requests are refused."""
        self._begun.set()

    async def wait_begun(self) -> None:
        """Returns once new requests are refused."""
        await self._begun.wait()

    def enter(self) -> None:
        """A request was taken."""
        self._num_requests += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request ended."""
        self._num_requests -= 1
        assert self._num_requests >= 0
        if self._num_requests == 0:
            self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request, from its being taken to its end."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    async def wait_idle(self) -> None:
        """Returns once no request is left."""
        await self._idle.wait()
