"""What one API key has used, against its own limits.

Each router process counts for itself. A request is taken from its key's rate when its head comes, before its body;
its prompt's tokens once they are known, its output's as it ends. So a key that still has one token left may begin a
request of any size, and waits the longer afterwards.
"""

import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from baton.router.auth.api_key import ApiKey
from baton.router.errors import FieldError, KeyLimitReached


class RateBucket:
    """Owns how much of a rate is left: a minute's worth at first and at most. It may be overdrawn by the last taker."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """What can be taken now; below zero if more was taken than there was."""
        if now_s > self._at_s:
            self._level = min(self.per_minute, self._level + (now_s - self._at_s) * self.per_minute / 60)
            self._at_s = now_s
        return self._level

    def take(self, count: int, now_s: float) -> None:
        """So much is used, whether it is there or not."""
        self._level = self.level(now_s) - count

    def wait_s(self, now_s: float) -> float:
        """Time until there is one to take; 0 if there is."""
        return max(0.0, (1 - self.level(now_s)) * 60 / self.per_minute)

    def full_s(self, now_s: float) -> float:
        """Time until it is full again if nothing is taken."""
        return (self.per_minute - self.level(now_s)) * 60 / self.per_minute


NOTHING: Mapping[str, str] = MappingProxyType({})
RATES = ("requests", "tokens")


class KeyMeter:
    """Owns the counts of one key; they outlive changes of its limits."""

    def __init__(self, key: ApiKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = key
        self._num_inflight = 0
        self._num_uploads = 0  # requests whose bodies have not been read; each becomes at least one choice
        self._buckets: dict[str, RateBucket] = {}  # by what they count
        self.renew(key)

    def renew(self, key: ApiKey) -> None:
        """The key has these limits from now on; a rate that changed begins with a full minute."""
        self._key = key
        for kind, per_minute in zip(RATES, (key.requests_per_minute, key.tokens_per_minute), strict=True):
            bucket = self._buckets.get(kind)
            if per_minute is None:
                self._buckets.pop(kind, None)
            elif bucket is None or bucket.per_minute != per_minute:
                self._buckets[kind] = RateBucket(per_minute, self._clock())

    def begin(self) -> None:
        """A request came. Raises KeyLimitReached if the key has used up a rate."""
        if not self._buckets:
            return
        now_s = self._clock()
        for kind, bucket in self._buckets.items():
            wait_s = bucket.wait_s(now_s)
            if wait_s > 0:
                text = f"the API key has used up its {bucket.per_minute} {kind} a minute"
                raise KeyLimitReached(text, max(1, math.ceil(wait_s)), kind)
        if (requests := self._buckets.get("requests")) is not None:
            requests.take(1, now_s)

    def begin_upload(self) -> None:
        """Count a request whose body is to come. Raises KeyLimitReached if the key has no choice left for it."""
        self._check_inflight(self._num_uploads + 1)
        self._num_uploads += 1

    def end_upload(self) -> None:
        """Count one such request less."""
        self._num_uploads -= 1

    def enter(self, num_choices: int) -> None:
        """So many choices are to be generated. Raises KeyLimitReached, or FieldError for more than ever can be."""
        limit = self._key.max_inflight
        if limit is not None and num_choices > limit:
            text = f"the request has {num_choices} choices, over the API key's limit of {limit} at once"
            raise FieldError("n", text)
        self._check_inflight(num_choices)
        self._num_inflight += num_choices

    def leave(self, num_choices: int) -> None:
        """So many choices have ended."""
        self._num_inflight -= num_choices

    def _check_inflight(self, num_more: int) -> None:
        limit = self._key.max_inflight
        if limit is not None and self._num_inflight + num_more > limit:
            uploads = f" and {self._num_uploads} requests on their way" if self._num_uploads else ""
            text = f"the API key has {self._num_inflight} choices in flight{uploads}, and its limit is {limit}"
            raise KeyLimitReached(text, 1, "requests")

    def charge(self, num_tokens: int) -> None:
        """So many tokens were read or generated."""
        if num_tokens and (tokens := self._buckets.get("tokens")) is not None:
            tokens.take(num_tokens, self._clock())

    def headers(self) -> Mapping[str, str]:
        """What is left of each rate, as OpenAI tells it."""
        if not self._buckets:
            return NOTHING
        now_s = self._clock()
        told: dict[str, str] = {}
        for kind, bucket in self._buckets.items():
            told[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
            told[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(bucket.level(now_s))))
            told[f"x-ratelimit-reset-{kind}"] = duration(bucket.full_s(now_s))
        return told


def duration(seconds: float) -> str:
    """A time as OpenAI words it: 12ms, 7.66s, 6m0s, 1h2m3s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{math.ceil(seconds * 100) / 100:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
