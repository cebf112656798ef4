"""What a worker counts beside its engine."""

from dataclasses import dataclass, field

from baton.worker.taken_commands import TakenCommands

READ_DECAY = 0.9  # of a read's weight with each read after it


@dataclass(slots=True)
class WorkerCounters:
    """What comes to a worker: KV from its peers, commands from its routers; changed on its event loop alone."""

    handovers: int = 0
    handover_bytes: int = 0
    handover_failures: int = 0
    checksum_failures: int = 0
    num_prefills: int = 0  # prompts for others that are not computed yet
    num_remembered: int = 0  # requests that ended and may be recalled
    taken: TakenCommands = field(default_factory=TakenCommands)
    _recent_bytes: float = 0.0
    _recent_s: float = 0.0

    def note_read(self, num_bytes: int, duration_s: float) -> None:
        """So many bytes of KV came from a peer; the time is that of the reads alone."""
        if num_bytes > 0 and duration_s > 0:
            self._recent_bytes = READ_DECAY * self._recent_bytes + num_bytes
            self._recent_s = READ_DECAY * self._recent_s + duration_s

    @property
    def read_bytes_per_s(self) -> float:
        """Bytes a second of recent reads; 0: not known yet."""
        return self._recent_bytes / self._recent_s if self._recent_s else 0.0
