"""What is to be done, and why."""

from dataclasses import dataclass, field

from baton.deployment.autoscaling.band import Band
from baton.deployment.autoscaling.flips import Flips
from baton.deployment.autoscaling.hysteresis import SizeState
from baton.deployment.autoscaling.need import Need


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """One pool's size."""

    target: int
    wanted: int  # more than the target until there is room in the budget
    need: int  # what the present load asks for, of either pool alone
    factor: float  # by which measured times correct the model
    reason: str

    @classmethod
    def of(cls, old: int, new: int, size: SizeState, need: Need, band: Band, now_s: float) -> "PoolDecision":
        """In words: what changes, or what speaks for a change that has to wait; and why."""
        text = f"stays {new}" if new == old else f"{old} -> {new}"
        if new < size.wanted:
            text += f", waits for GPUs for {size.wanted}"
        if size.above is not None:
            text += f", {band.least} needed for {now_s - size.above.since_s:.0f} s"
        elif size.below is not None:
            whose = " beside the other pool" if band.is_pressed else ""
            text += f", {band.most} would do{whose} for {now_s - size.below.since_s:.0f} s"
        return cls(new, size.wanted, need.least, need.factor, f"{text}: {need.why}")


@dataclass(frozen=True, slots=True)
class Decision:
    """Sizes to go to at once."""

    prefill: PoolDecision
    decode: PoolDecision
    believed_gpus: int  # fewer than the budget, if replicas did not come
    flips: Flips = field(default_factory=Flips)

    @property
    def reason(self) -> str:
        """For a log."""
        return f"prefill: {self.prefill.reason}; decode: {self.decode.reason}"
