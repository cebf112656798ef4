"""Reader of the console's stream of events."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import orjson

EVENTS = "/console/events"


class EventReader:
    """The events of one response."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        """Return the name and the content of the next event."""
        name = (await anext(self._lines)).removeprefix("event: ")
        data = (await anext(self._lines)).removeprefix("data: ")
        assert await anext(self._lines) == ""
        return name, orjson.loads(data)

    async def end(self) -> None:
        """Read to the end."""
        async for _ in self._lines:
            pass

    async def state(self) -> Any:
        """Return the next state."""
        while True:
            name, content = await self.next()
            if name == "state":
                return content


@asynccontextmanager
async def events(http: httpx.AsyncClient, headers: Mapping[str, str] | None = None) -> AsyncIterator[EventReader]:
    """Open the stream."""
    async with http.stream("GET", EVENTS, headers=headers) as response:
        yield EventReader(response)
