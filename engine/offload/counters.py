"""Counters of weights offload."""

from dataclasses import dataclass


@dataclass(slots=True)
class OffloadCounters:
    """Counters since start."""

    num_stored_bytes: int = 0  # of weights in the file, or in the host's memory; 0: without offload
    num_read_bytes: int = 0
    waited_s: float = 0.0  # that steps waited for reads
    num_expert_hits: int = 0
    num_expert_misses: int = 0
    progressed_s: float = 0.0  # monotonic time at which a step last got weights that it waited for
