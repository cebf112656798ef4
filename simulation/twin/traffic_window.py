"""The recent traffic, as reported to the autoscaler."""

from bisect import bisect_left
from collections import deque
from math import inf

from baton.deployment.autoscaling.moments import Moments, answer_moments
from baton.deployment.autoscaling.snapshot import Arrivals, Traffic

WINDOW_S = 60.0
RECENT_S = (10.0, 20.0, 40.0)  # parts of it whose arrivals are counted too, as routers do


class SlidingMoments:
    """The values of the last window, and their first two moments."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque()  # time and value
        self._sum = self._squares = 0.0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def total(self) -> float:
        """Sum of the values in the window, as of the last call."""
        return max(0.0, self._sum)

    def note(self, now_s: float, value: float) -> None:
        """Add a value."""
        self._forget(now_s - WINDOW_S)
        self._values.append((now_s, value))
        self._sum += value
        self._squares += value * value

    def since(self, time_s: float) -> Moments:
        """Return the moments of the values since `time_s`, and drop older ones."""
        self._forget(time_s)
        count = len(self._values)
        return Moments(max(0.0, self._sum) / count, max(0.0, self._squares) / count) if count else Moments()

    def num_since(self, time_s: float) -> int:
        """Return the number of the values since `time_s`."""
        return len(self._values) - bisect_left(self._values, (time_s, -inf))

    def _forget(self, before_s: float) -> None:
        while self._values and self._values[0][0] < before_s:
            _, value = self._values.popleft()
            self._sum -= value
            self._squares -= value * value
        if not self._values:
            self._sum = self._squares = 0.0  # drops the rounding errors too


class TrafficWindow:
    """The requests that arrived or ended within the window."""

    def __init__(self) -> None:
        self._gaps = SlidingMoments()
        self._prompts = SlidingMoments()
        self._uncached = SlidingMoments()
        self._remote = SlidingMoments()
        self._outputs = SlidingMoments()
        self._generated = SlidingMoments()
        self._num_generated: int | None = None  # since the start; None: not counted
        self._last_s: float | None = None  # time of the last arrival

    def note_arrival(self, now_s: float, num_prompt_tokens: int, num_uncached_tokens: int, is_remote: bool) -> None:
        """Record a routed request; `num_uncached_tokens` of its prompt must be computed on either of its workers."""
        if self._last_s is not None:
            self._gaps.note(now_s, now_s - self._last_s)
        self._last_s = now_s
        self._prompts.note(now_s, num_prompt_tokens)
        self._uncached.note(now_s, num_uncached_tokens)
        if is_remote:
            self._remote.note(now_s, num_uncached_tokens)

    def note_end(self, now_s: float, num_output_tokens: int) -> None:
        """Record a request that got its last token."""
        self._outputs.note(now_s, num_output_tokens)

    def note_generated(self, now_s: float, num_tokens: int) -> None:
        """Record the number of output tokens since the start."""
        self._generated.note(now_s, num_tokens - (self._num_generated or 0))
        self._num_generated = num_tokens

    def traffic(self, now_s: float) -> Traffic:
        """Return the traffic of the window, which is shorter at the beginning."""
        window_s = min(WINDOW_S, now_s)
        since_s = now_s - WINDOW_S
        prompts = self._prompts.since(since_s)
        gaps = self._gaps.since(since_s)
        remote = self._remote.since(since_s)
        outputs = self._outputs.since(since_s)
        self._generated.since(since_s)
        num_generated = self._generated.total if self._num_generated is not None else None
        return Traffic(
            window_s=window_s,
            requests_per_s=len(self._prompts) / window_s if window_s > 0 else 0.0,
            arrival_cv2=gaps.cv2 if len(self._gaps) > 1 else 1.0,
            prompt_tokens=prompts,
            uncached_tokens=self._uncached.since(since_s),
            output_tokens=answer_moments(outputs, len(self._outputs), num_generated),
            num_ended=len(self._outputs),
            remote_share=len(self._remote) / len(self._prompts) if len(self._prompts) else 1.0,
            remote_tokens=remote,
            recent=tuple(
                Arrivals(each_s, self._prompts.num_since(now_s - each_s)) for each_s in RECENT_S if each_s < window_s
            ),
        )
