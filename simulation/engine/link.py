"""The link over which a simulated worker receives blocks."""

from baton.simulation.engine.clock import Clock
from baton.simulation.engine.spec import WorkerSpec


class Link:
    """The time of one incoming link; transfers are serial."""

    def __init__(self, spec: WorkerSpec, clock: Clock) -> None:
        self.num_bytes = 0  # since the start
        self._block_bytes = spec.block_bytes
        self._bytes_per_s = spec.link_bytes_per_s
        self._clock = clock
        self._free_at_s = 0.0

    def reserve(self, num_blocks: int) -> float:
        """Begin to read blocks; returns the time at which the last of them is here."""
        num_bytes = num_blocks * self._block_bytes
        self.num_bytes += num_bytes
        self._free_at_s = max(self._free_at_s, self._clock.now_s) + num_bytes / self._bytes_per_s
        return self._free_at_s
