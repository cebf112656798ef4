"""The link over which a replica's blocks come from others."""

from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.clock import Clock


class Link:
    """Owns the time of one incoming link; what comes over it comes one after the other."""

    def __init__(self, clock: Clock, spec: WorkerSpec) -> None:
        self._clock = clock
        self._block_s = spec.block_bytes / spec.link_bytes_per_s
        self._free_at_s = 0.0

    def reserve(self, num_blocks: int) -> float:
        """Begins to read blocks; returns the time at which the last of them is here."""
        self._free_at_s = max(self._free_at_s, self._clock.now_s) + num_blocks * self._block_s
        return self._free_at_s
