"""Timelines of the router processes that share ports: a request for one may reach another process than its own, and
requests with the same id may have reached several."""

from pathlib import Path
from types import TracebackType

import orjson

from baton.router.process_socket import ProcessSocket
from baton.router.tracing.timelines import TimelineKey, Timelines


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
        found = [each for each in (self._timelines.find(key), *others.values()) if each]
        return max(found, key=_begun_at, default=None)

    async def _find_own(self, line: str) -> bytes:
        owner, request_id = line.split(" ")
        return self._timelines.find(TimelineKey(owner, request_id)) or b""


def _begun_at(timeline: bytes) -> float:
    return float(orjson.loads(timeline)["begun_at"])
