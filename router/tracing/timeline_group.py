"""Timelines of the router processes that share ports: a request for one may reach another process than its own, and
requests with the same id may have reached several."""

import logging
from pathlib import Path
from types import TracebackType

import orjson

from baton.router.process_socket import ProcessSocket
from baton.router.tracing.timelines import TimelineKey, Timelines

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

    async def find(self, key: TimelineKey) -> bytes | None:
        """Return the newest timeline with this key of all processes; None if none has one."""
        others = await self._socket.ask(f"{key.owner} {key.request_id}")
        timelines = (self._timelines.find(key), *others.values())
        begun_at = {each: at for each in timelines if each and (at := _begun_at(each)) is not None}
        return max(begun_at, key=begun_at.__getitem__, default=None)

    async def _find_own(self, line: str) -> bytes:
        owner, request_id = line.split(" ")
        return self._timelines.find(TimelineKey(owner, request_id)) or b""


def _begun_at(timeline: bytes) -> float | None:
    """Return the time at which the request began; None if the timeline is truncated, as after its sender's death."""
    try:
        return float(orjson.loads(timeline)["begun_at"])
    except ValueError as error:
        logger.debug("the timeline of a router process is unreadable: %r", error)
        return None
