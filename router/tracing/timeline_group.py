"""Timelines of the router processes that share ports: a request for one may reach another process than its own, and
requests with the same id may have reached several."""

import logging
from pathlib import Path
from types import TracebackType

import orjson

from baton.router.process_socket import ProcessSocket
from baton.router.tracing.timeline import Timeline
from baton.router.tracing.timelines import TimelineQuery, Timelines, latest, nearest

logger = logging.getLogger(__name__)


class TimelineGroup:
    """The processes' timelines. Owns the socket at which one of them serves its own to the others."""

    def __init__(self, directory: Path, number: int, size: int, timelines: Timelines) -> None:
        """`number`: of this process, from 0 to `size` - 1."""
        self._timelines = timelines
        self._socket = ProcessSocket(directory, "timelines", number, size, self._find_own)

    async def __aenter__(self) -> "TimelineGroup":
        await self._socket.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._socket.__aexit__(kind, error, trace)

    async def find(self, query: TimelineQuery) -> Timeline | None:
        """Return the timeline that is asked for, whichever process has it; None if none has one."""
        begun_at = "" if query.begun_at is None else repr(query.begun_at)
        others = await self._socket.ask(f"{query.owner} {query.request_id} {begun_at}")
        every = (self._timelines.find(query), *map(_decoded, others.values()))
        found = {each["begun_at"]: each for each in every if each is not None}
        if not found:
            return None
        timeline = found[nearest(found, query.begun_at)]
        timeline["same_id_begun_at"] = latest({at for each in found.values() for at in each["same_id_begun_at"]})
        return timeline

    async def _find_own(self, line: str) -> bytes:
        owner, request_id, begun_at = line.split(" ")
        found = self._timelines.find(TimelineQuery(owner, request_id, float(begun_at) if begun_at else None))
        return b"" if found is None else orjson.dumps(found)


def _decoded(response: bytes | None) -> Timeline | None:
    """Return a process's timeline; None if it has none, or the response is truncated, as after its sender's death."""
    if not response:
        return None
    try:
        timeline: Timeline = orjson.loads(response)
    except ValueError as error:
        logger.debug("the timeline of a router process is unreadable: %r", error)
        return None
    return timeline
