"""The link over which a simulated worker reads blocks from its peers."""

from baton.simulation.engine.clock import Clock
from baton.simulation.engine.spec import WorkerSpec


class Link:
    """One incoming link; its reads are serial."""

    def __init__(self, spec: WorkerSpec, clock: Clock) -> None:
        self.num_bytes = 0  # read since the start
        self._block_bytes = spec.block_bytes
        self._bytes_per_s = spec.link_bytes_per_s
        self._clock = clock
        self._free_at_s = 0.0

    def reserve(self, num_blocks: int) -> float:
        """Begin to read blocks; return the time at which the last of them is read."""
        self.num_bytes += num_blocks * self._block_bytes
        self._free_at_s = max(self._free_at_s, self._clock.now_s) + self.read_s(num_blocks)
        return self._free_at_s

    def read_s(self, num_blocks: int) -> float:
        """Return the seconds that a read of blocks takes once the link is free."""
        return num_blocks * self._block_bytes / self._bytes_per_s
