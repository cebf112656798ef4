"""Reads of a handover, and the durations that follow from them."""

from dataclasses import dataclass, field

MAX_ANNOUNCE_S = 10.0  # from computed to announced; a longer time means that the two clocks are of different hosts


@dataclass(frozen=True, slots=True)
class Read:
    """One read of announced blocks; seconds of the monotonic clock."""

    end_s: float
    duration_s: float


@dataclass(slots=True)
class ReadTimes:
    """Durations and milestones of a handover, by this host's monotonic clock."""

    reads: list[Read] = field(default_factory=list)
    last_computed_at_s: float = 0.0  # when the last announced block was computed
    complete_at_s: float = 0.0  # when the last block was received and checked; 0: never

    def note_computed(self, computed_at_s: float, announced_at_s: float) -> None:
        """Record an announcement: `computed_at_s` by the prefill worker's clock, `announced_at_s` by ours.

        `computed_at_s` is used only if both run on one host: monotonic clocks of two hosts are unrelated.
        """
        is_same_clock = 0 <= announced_at_s - computed_at_s <= MAX_ANNOUNCE_S
        self.last_computed_at_s = max(self.last_computed_at_s, computed_at_s if is_same_clock else announced_at_s)

    def note_read(self, end_s: float, duration_s: float) -> None:
        """Record a finished read."""
        self.reads.append(Read(end_s, duration_s))

    @property
    def transfer_s(self) -> float:
        """Seconds spent reading."""
        return sum(read.duration_s for read in self.reads)

    @property
    def exposed_transfer_s(self) -> float:
        """Seconds of `transfer_s` after the last block was computed, when no computation hid the transfer."""
        return sum(max(0.0, min(read.duration_s, read.end_s - self.last_computed_at_s)) for read in self.reads)

    @property
    def handover_s(self) -> float:
        """Seconds from the last block computed to all blocks received and checked; 0 if they never were."""
        return self.complete_at_s - self.last_computed_at_s if self.complete_at_s else 0.0

    @property
    def phases_s(self) -> dict[str, float]:
        """Seconds of a completed handover that has read blocks, by phase.

        pull: from the first read to all blocks received and checked. read: spent reading. exposed: spent reading after
        the last block was computed. tail: from then to all blocks received and checked.
        """
        first = self.reads[0]
        return {
            "pull": self.complete_at_s - (first.end_s - first.duration_s),
            "read": self.transfer_s,
            "exposed": self.exposed_transfer_s,
            "tail": self.handover_s,
        }
