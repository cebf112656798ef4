"""What a replica's last requests took."""

from collections import deque
from math import ceil

from baton.deployment.autoscaling.snapshot import ReplicaLatency

MAX_SAMPLES = 4096  # more than a replica ends in a window


class LatencyWindow:
    """Owns the samples of the last window."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)  # when, and seconds

    def note(self, now_s: float, seconds: float) -> None:
        """One request's time."""
        self._samples.append((now_s, seconds))

    def latency(self, ready_for_s: float, since_s: float, quantile: float) -> ReplicaLatency:
        """The samples since then; those before it are forgotten."""
        while self._samples and self._samples[0][0] < since_s:
            self._samples.popleft()
        times = sorted(seconds for _, seconds in self._samples)
        quantile_s = times[ceil(quantile * len(times)) - 1] if times else 0.0
        return ReplicaLatency(ready_for_s, len(times), quantile_s)
