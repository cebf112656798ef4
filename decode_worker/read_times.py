"""When a handover's reads ran, beside when its blocks were computed."""

from dataclasses import dataclass, field

MAX_ANNOUNCE_S = 10.0  # from computed to announced; beyond it the two clocks are of different hosts


@dataclass(frozen=True, slots=True)
class Read:
    """One read; monotonic seconds."""

    end_s: float
    duration_s: float


@dataclass(slots=True)
class ReadTimes:
    """All times are of this host's monotonic clock."""

    reads: list[Read] = field(default_factory=list)
    last_computed_at_s: float = 0.0  # when the prefill worker had computed the last announced block
    complete_at_s: float = 0.0  # when the last block was in and checked; 0: never

    def note_computed(self, computed_at_s: float, announced_at_s: float) -> None:
        """Blocks were computed at one time, by the announcer's clock, and announced here at another.

        The announcer's clock counts only if it can be ours: monotonic clocks of two hosts have nothing in common.
        """
        is_same_clock = 0 <= announced_at_s - computed_at_s <= MAX_ANNOUNCE_S
        self.last_computed_at_s = max(self.last_computed_at_s, computed_at_s if is_same_clock else announced_at_s)

    def note_read(self, end_s: float, duration_s: float) -> None:
        """A read ended."""
        self.reads.append(Read(end_s, duration_s))

    @property
    def transfer_s(self) -> float:
        """Time spent reading."""
        return sum(read.duration_s for read in self.reads)

    @property
    def exposed_transfer_s(self) -> float:
        """The part of it after the last block was computed, that no computation hid."""
        return sum(max(0.0, min(read.duration_s, read.end_s - self.last_computed_at_s)) for read in self.reads)

    @property
    def handover_s(self) -> float:
        """From "the last block computed" to "all blocks here and checked"; 0 if they never were."""
        return self.complete_at_s - self.last_computed_at_s if self.complete_at_s else 0.0
