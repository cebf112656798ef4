"""Decision of the autoscaler, with reasons."""

from dataclasses import dataclass, field

from baton.deployment.autoscaling.band import Band
from baton.deployment.autoscaling.flips import Flips
from baton.deployment.autoscaling.hysteresis import SizeState
from baton.deployment.autoscaling.need import Need
from baton.deployment.autoscaling.snapshot import Traffic


@dataclass(frozen=True, slots=True)
class PoolDecision:
    """Target size of one pool."""

    target: int
    wanted: int  # above the target until the budget has room
    need: int  # for the current load, regardless of the other pool
    factor: float  # correction of the model by measured latencies
    reason: str

    @classmethod
    def of(
        cls, old: int, new: int, before: SizeState, size: SizeState, need: Need, band: Band, now_s: float
    ) -> "PoolDecision":
        """Make the decision with its reason: the change, and a pending one or what holds the pool at its size.

        `old` and `new`: granted sizes. `before` and `size`: the wanted ones.
        """
        text = f"stays {new}" if new == old else f"{old} -> {new}"
        if new < size.wanted:
            text += f", waits for GPUs for {size.wanted}"
        text += _pending(before, size, need, band, now_s)
        return cls(new, size.wanted, need.least, need.factor, f"{text}: {need.why}")


def _pending(before: SizeState, size: SizeState, need: Need, band: Band, now_s: float) -> str:
    """Return what is needed if that is not the wanted size, and why the pool does not follow yet."""
    if size.above is not None:
        return f", {band.least} needed for {now_s - size.above.since_s:.0f} s"
    if size.below is not None:
        lasted_s = now_s - size.below.since_s
        pressure = " with the other pool's need" if band.is_pressed else ""
        turn = ", but it grew too recently" if lasted_s >= band.shrink_delay_s else ""
        return f", {band.most} would be enough{pressure} for {lasted_s:.0f} s{turn}"
    if size.wanted != before.wanted:
        return ""  # its delays begin with the next snapshot
    if need.least < size.wanted:
        return f", {need.least} needed and {size.wanted - need.least} kept as a margin"
    if need.least > size.wanted:
        held = "it shrank too recently" if band.least > size.wanted else "there are not enough GPUs for both pools"
        return f", {need.least} needed, but {held}"
    return ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Target sizes of both pools."""

    prefill: PoolDecision
    decode: PoolDecision
    believed_gpus: int  # below the budget if replicas failed to start
    flips: Flips = field(default_factory=Flips)
    local_share: float = 0.0  # of the requests, whose prompts decode workers are planned to compute
    load: Traffic | None = None  # of the time since it last changed, which needs these sizes; None: nothing was planned

    @property
    def reason(self) -> str:
        """Both reasons, for the log."""
        return f"prefill: {self.prefill.reason}; decode: {self.decode.reason}"
