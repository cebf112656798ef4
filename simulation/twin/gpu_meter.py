"""The GPUs in use over time."""

from dataclasses import dataclass

from baton.deployment.autoscaling.by_pool import ByPool


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the pools from `since_s` on."""

    since_s: float
    ready: ByPool[int]
    gpus: ByPool[int]  # including starting and draining replicas


class GpuMeter:
    """The history of the pools' sizes."""

    def __init__(self) -> None:
        self.history: list[Sizes] = []

    def note(self, sizes: Sizes) -> None:
        """Record a change; of several at the same time only the last is kept."""
        if self.history and self.history[-1].since_s == sizes.since_s:
            self.history.pop()
        if not self.history or (self.history[-1].ready, self.history[-1].gpus) != (sizes.ready, sizes.gpus):
            self.history.append(sizes)

    def gpu_hours(self, until_s: float) -> float:
        """Return the GPU-hours of both pools together."""
        ends = [each.since_s for each in self.history[1:]] + [until_s]
        return sum(
            sum(each.gpus.both()) * max(0.0, min(end_s, until_s) - each.since_s) / 3600
            for each, end_s in zip(self.history, ends, strict=True)
        )

    @property
    def most_gpus(self) -> int:
        """Largest number of GPUs in use at the same time."""
        return max((sum(each.gpus.both()) for each in self.history), default=0)
