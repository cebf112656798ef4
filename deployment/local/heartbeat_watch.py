"""Notices that a process sends no more heartbeats: it was stopped, or its event loop stands still.

The supervisor's own wakes are counted, not time. While the supervisor does not run either (the machine sleeps, its
container is frozen, no core is free), it does not wake, and no process is found silent.
"""

import asyncio
import math

from baton.process.heartbeat import HEARTBEAT_S


class HeartbeatWatch:
    """Wakes of the supervisor since the last heartbeat of one life of a process."""

    def __init__(self, timeout_s: float) -> None:
        """A process may be silent for `timeout_s`; 0: for any time."""
        self._max_missed = max(1, math.ceil(timeout_s / HEARTBEAT_S)) if timeout_s else math.inf
        self._num_missed: float = -math.inf  # it is starting, which may take any time

    def note(self) -> None:
        """Note a heartbeat, the first of which is that the process is ready."""
        self._num_missed = 0

    async def wait_silence(self) -> None:
        """Return once the process was silent for too long after its first heartbeat."""
        while self._num_missed < self._max_missed:
            await asyncio.sleep(HEARTBEAT_S)
            self._num_missed += 1
