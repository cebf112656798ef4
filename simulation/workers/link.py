"""The link over which a simulated worker's blocks come."""

import asyncio

from baton.simulation.engine.spec import WorkerSpec


class Link:
    """Owns the time of one incoming link; what comes over it comes one after the other."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.num_bytes = 0  # since the start
        self._block_bytes = spec.block_bytes
        self._bytes_per_s = spec.link_bytes_per_s
        self._free_at_s = 0.0

    def reserve(self, num_blocks: int) -> float:
        """Begins to read blocks; returns the loop's time at which the last of them is here."""
        num_bytes = num_blocks * self._block_bytes
        self.num_bytes += num_bytes
        self._free_at_s = max(self._free_at_s, asyncio.get_running_loop().time()) + num_bytes / self._bytes_per_s
        return self._free_at_s


async def sleep_until(time_s: float) -> None:
    """Returns when the loop's clock shows `time_s`, not before: timers of uvloop may ring half a millisecond early."""
    loop = asyncio.get_running_loop()
    while loop.time() < time_s:
        reached = asyncio.Event()
        timer = loop.call_at(time_s, reached.set)
        try:
            await reached.wait()
        finally:
            timer.cancel()
