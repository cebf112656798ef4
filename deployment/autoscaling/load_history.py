"""The load since it last changed, measured over a window that adapts.

Routers report the traffic of a fixed window, and the arrivals of its last seconds. After a jump only the arrivals since
then count, so that it is seen within seconds. While the load stays the same, earlier windows count too, so that chance
is a smaller part of what is measured (compare Bifet and Gavalda, Learning from time-changing data with adaptive
windowing, 2007).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.snapshot import Arrivals, Traffic

LONGEST_S = 300.0  # of the time that counts
JUMP_DEVIATIONS = 4.0  # beyond which the last seconds' arrivals are a jump
LASTING_S = 10.0  # after which a jump counts: a burst of a few seconds ends before a replica starts
CHANGE_DEVIATIONS = 3.0  # beyond which a window's load is another than before


@dataclass(frozen=True, slots=True)
class PastWindow:
    """The traffic of an earlier window."""

    ended_s: float
    traffic: Traffic

    @property
    def began_s(self) -> float:
        """Time of its first request."""
        return self.ended_s - self.traffic.window_s


@dataclass(frozen=True, slots=True)
class LoadHistory:
    """Earlier windows, none of which overlap, and when the load changed."""

    recorded_s: float | None = None  # end of the last window; None: no snapshot yet
    changed_s: float = -inf
    jumped_s: float = -inf  # when the arrivals' last jump began
    seen_s: float = -inf  # when it was first seen
    past: tuple[PastWindow, ...] = ()

    def after(self, now_s: float, traffic: Traffic) -> "LoadHistory":
        """Return the history after one more snapshot."""
        began_s = now_s - traffic.window_s
        recorded_s = now_s if self.recorded_s is None else self.recorded_s
        seen = self._with_change(now_s, traffic)
        past = tuple(each for each in self.past if each.began_s >= max(seen.changed_s, now_s - LONGEST_S))
        if traffic.window_s > 0 and began_s >= max(recorded_s, seen.changed_s):
            return replace(seen, recorded_s=now_s, past=(*past, PastWindow(now_s, traffic)))
        return replace(seen, recorded_s=recorded_s, past=past)

    def load(self, now_s: float, traffic: Traffic) -> Traffic:
        """Return the traffic with the rate since a jump, or together with that of the earlier windows."""
        if not traffic.recent or not self.has_jumped(now_s, traffic):
            return merged([*self._before(now_s, traffic), traffic])
        last = traffic.recent[0]
        since = [each for each in traffic.recent if each.window_s <= now_s - self.jumped_s + 1] or [last]
        all_since = since[-1]
        is_over = _deviations(last, all_since.num_requests, all_since.window_s, traffic) < -CHANGE_DEVIATIONS
        recent = last if is_over else all_since
        return replace(traffic, window_s=recent.window_s, requests_per_s=recent.num_requests / recent.window_s)

    def has_jumped(self, now_s: float, traffic: Traffic) -> bool:
        """Whether the arrivals have jumped less than a window ago, but not in the last seconds."""
        return now_s - self.jumped_s < traffic.window_s and now_s - self.seen_s >= LASTING_S

    def _with_change(self, now_s: float, traffic: Traffic) -> "LoadHistory":
        """Return the history with the time of a change that this snapshot shows."""
        before, jump = self._before(now_s, traffic), jump_of(traffic)
        if jump is not None:
            jumped_s = max(self.changed_s, now_s - jump.window_s)
            is_known = now_s - self.jumped_s < traffic.window_s
            return replace(self, changed_s=jumped_s, jumped_s=jumped_s, seen_s=self.seen_s if is_known else now_s)
        if before and is_change(traffic, merged(before)):
            return replace(self, changed_s=max(self.changed_s, now_s - traffic.window_s))
        return self

    def _before(self, now_s: float, traffic: Traffic) -> list[Traffic]:
        """Return the earlier windows that do not overlap with the present one."""
        return [each.traffic for each in self.past if each.ended_s <= now_s - traffic.window_s]


def jump_of(traffic: Traffic) -> Arrivals | None:
    """Return the last seconds whose arrivals exceed those before by the most standard deviations; None: no jump."""
    num_all = traffic.requests_per_s * traffic.window_s
    found, most = None, JUMP_DEVIATIONS
    for recent in traffic.recent:
        deviations = _deviations(recent, num_all, traffic.window_s, traffic)
        if deviations > most:
            found, most = recent, deviations
    return found


def _deviations(recent: Arrivals, num_all: float, window_s: float, traffic: Traffic) -> float:
    """Return the standard deviations by which the last seconds' arrivals exceed those before.

    The root of a Poisson count has a variance of nearly 1/4 (Anscombe, The transformation of Poisson, binomial and
    negative-binomial data, 1948); that of other arrivals is larger by the variation of their gaps. `num_all`: arrivals
    of both together, in `window_s`.
    """
    rest_s = window_s - recent.window_s
    if rest_s <= 0 or recent.window_s <= 0:
        return 0.0
    ratio = recent.window_s / rest_s
    expected = max(0.0, num_all - recent.num_requests) * ratio
    spread = sqrt(max(1.0, traffic.arrival_cv2) * (1 + ratio))
    return 2 * (sqrt(recent.num_requests + 3 / 8) - sqrt(expected + 3 / 8)) / spread


def is_change(present: Traffic, before: Traffic) -> bool:
    """Whether the requests, the prompts' work or the outputs' work differ by more than chance."""
    return any(
        _differ(present, first, before, second)
        for first, second in (
            (Moments(1.0, 1.0), Moments(1.0, 1.0)),
            (present.uncached_tokens, before.uncached_tokens),
            (present.output_tokens, before.output_tokens),
        )
    )


def _differ(present: Traffic, amounts: Moments, before: Traffic, earlier: Moments) -> bool:
    first, second = present.requests_per_s * amounts.mean, before.requests_per_s * earlier.mean
    if first <= 0 or second <= 0:
        return first != second
    return abs(log(first / second)) > CHANGE_DEVIATIONS * sqrt(_variance(present, amounts) + _variance(before, earlier))


def _variance(traffic: Traffic, amounts: Moments) -> float:
    """Return the relative variance by chance of the work that arrives, as of `need.load_chance`."""
    num_requests = traffic.requests_per_s * traffic.window_s
    return (max(1.0, traffic.arrival_cv2) + amounts.cv2) / num_requests if num_requests > 0 else inf


def merged(windows: Sequence[Traffic]) -> Traffic:
    """Return the traffic of several windows, the present one last, whose local prompts and ended outputs stay."""
    present = windows[-1]
    if len(windows) == 1:
        return present
    nums = [each.requests_per_s * each.window_s for each in windows]
    num_requests, window_s = sum(nums), sum(each.window_s for each in windows)
    if num_requests <= 0:
        return replace(present, window_s=window_s)
    ended = [float(each.num_ended) for each in windows]
    return replace(
        present,
        window_s=window_s,
        requests_per_s=num_requests / window_s,
        arrival_cv2=sum(num * each.arrival_cv2 for num, each in zip(nums, windows, strict=True)) / num_requests,
        prompt_tokens=Moments.mixed(nums, [each.prompt_tokens for each in windows]),
        uncached_tokens=Moments.mixed(nums, [each.uncached_tokens for each in windows]),
        output_tokens=Moments.mixed(ended if all(ended) else nums, [each.output_tokens for each in windows]),
    )
