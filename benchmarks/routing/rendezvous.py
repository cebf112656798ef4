"""Where a peer's decode worker finds the prefill worker that its router chose for the same request.

In this family of protocols the router sends a request to both at once, under one number. The prefill begins when the
decode worker has blocks for the prompt, and its chunks are transferred while the next is computed, as in ours.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field

from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import OpenPrefill, SimulatedRequest


@dataclass(slots=True, eq=False)
class Meeting:
    """One request's."""

    prefill: "asyncio.Future[SimulatedEngine]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Rendezvous:
    """Owns the meetings of the requests under way."""

    def __init__(self) -> None:
        self._meetings: defaultdict[int, Meeting] = defaultdict(Meeting)

    async def offer(self, room: int, prefill: SimulatedEngine) -> None:
        """The prefill worker's side: returns when the prompt was handed over, or nobody wants it any more."""
        meeting = self._meetings[room]
        meeting.prefill.set_result(prefill)
        await meeting.ended.wait()

    async def find(self, room: int, request: SimulatedRequest) -> OpenPrefill:
        """The decode worker's side: how it gets the prompt's chunks."""
        prefill = await self._meetings[room].prefill
        return lambda num_cached: prefill.prefill(request)

    def end(self, room: int) -> None:
        """The decode worker has the prompt, or has given up."""
        meeting = self._meetings.pop(room, None)
        if meeting is not None:
            meeting.ended.set()
