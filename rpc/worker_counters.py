"""What a worker counts beside its engine."""

from dataclasses import dataclass


@dataclass(slots=True)
class WorkerCounters:
    """Handovers that a worker received; changed on its event loop alone."""

    handovers: int = 0
    handover_bytes: int = 0
    handover_failures: int = 0
    checksum_failures: int = 0
