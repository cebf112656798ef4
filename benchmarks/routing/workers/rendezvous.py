"""Rendezvous of a peer's prefill and decode workers for the same request.

In these protocols the router sends a request to both workers at once, with the same room number. Prefill starts when
the decode worker has blocks for the prompt, and chunks are transferred while the next one is computed, as in Baton.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import OpenPrefill, SimulatedRequest


@dataclass(slots=True, eq=False)
class Meeting:
    """Rendezvous of one request."""

    prefill: "asyncio.Future[SimulatedEngine]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Rendezvous:
    """Rendezvous of all in-flight requests."""

    def __init__(self) -> None:
        self._meetings: defaultdict[int, Meeting] = defaultdict(Meeting)

    async def offer(self, room: int, prefill: SimulatedEngine) -> None:
        """Offer a prefill worker; return when the prompt was handed over or is no longer needed."""
        meeting = self._meetings[room]
        meeting.prefill.set_result(prefill)
        await meeting.ended.wait()

    async def find(self, room: int, request: SimulatedRequest) -> OpenPrefill:
        """Return the function by which the decode worker gets the prompt's chunks."""
        prefill = await self._meetings[room].prefill
        return lambda num_cached: prefill.prefill(request)

    def end(self, room: int) -> None:
        """End the rendezvous: the decode worker has the prompt, or has given up."""
        meeting = self._meetings.pop(room, None)
        if meeting is not None:
            meeting.ended.set()
