"""Usage of one API key, compared with its limits.

Each router process counts separately. A request is charged when its headers arrive, its prompt's tokens after the
tokenisation, and its output's tokens at the end. So a key with one token left may begin a request of any size, and then
waits correspondingly longer.
"""

import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from baton.router.auth.api_key import ApiKey
from baton.router.errors import FieldError, KeyLimitReached


class RateBucket:
    """Token bucket that holds at most a minute's worth, which it starts with. Its level may become negative."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """Return the current level; negative if the bucket is overdrawn."""
        if now_s > self._at_s:
            self._level = min(self.per_minute, self._level + (now_s - self._at_s) * self.per_minute / 60)
            self._at_s = now_s
        return self._level

    def take(self, count: int, now_s: float) -> None:
        """Subtract from the level, even below zero."""
        self._level = self.level(now_s) - count

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the level is at least 1."""
        return max(0.0, (1 - self.level(now_s)) * 60 / self.per_minute)

    def full_s(self, now_s: float) -> float:
        """Return the seconds until the bucket is full if nothing is taken."""
        return (self.per_minute - self.level(now_s)) * 60 / self.per_minute


NOTHING: Mapping[str, str] = MappingProxyType({})
RATES = ("requests", "tokens")


class KeyMeter:
    """Counts of one key; they survive changes of its limits."""

    def __init__(self, key: ApiKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = key
        self._num_inflight = 0
        self._num_uploads = 0  # requests whose bodies have not been parsed; each becomes at least one completion
        self._buckets: dict[str, RateBucket] = {}  # by name in `RATES`
        self.renew(key)

    def renew(self, key: ApiKey) -> None:
        """Set the limits of the key. A rate that changed starts with a full bucket."""
        self._key = key
        for kind, per_minute in zip(RATES, (key.requests_per_minute, key.tokens_per_minute), strict=True):
            bucket = self._buckets.get(kind)
            if per_minute is None:
                self._buckets.pop(kind, None)
            elif bucket is None or bucket.per_minute != per_minute:
                self._buckets[kind] = RateBucket(per_minute, self._clock())

    @property
    def is_used(self) -> bool:
        """Whether the counts differ from those of a new meter."""
        now_s = self._clock()
        is_drawn = any(bucket.level(now_s) < bucket.per_minute for bucket in self._buckets.values())
        return is_drawn or self._num_inflight > 0 or self._num_uploads > 0

    def begin(self) -> None:
        """Count a request. Raises KeyLimitReached if the key has used up a rate."""
        if not self._buckets:
            return
        now_s = self._clock()
        for kind, bucket in self._buckets.items():
            wait_s = bucket.wait_s(now_s)
            if wait_s > 0:
                text = f"the API key has used up its {bucket.per_minute} {kind} per minute"
                raise KeyLimitReached(text, max(1, math.ceil(wait_s)), kind)
        if (requests := self._buckets.get("requests")) is not None:
            requests.take(1, now_s)

    def begin_upload(self) -> None:
        """Count a request whose body follows. Raises KeyLimitReached if the in-flight limit has no room for it."""
        self._check_inflight(self._num_uploads + 1)
        self._num_uploads += 1

    def end_upload(self) -> None:
        """Uncount a request of `begin_upload`."""
        self._num_uploads -= 1

    def enter(self, num_completions: int) -> None:
        """Count completions in flight. Raises KeyLimitReached, or FieldError if one request exceeds the limit."""
        limit = self._key.max_inflight
        if limit is not None and num_completions > limit:
            text = f"the request has {num_completions} completions, over the API key's limit of {limit} in flight"
            raise FieldError("n", text)
        self._check_inflight(num_completions)
        self._num_inflight += num_completions

    def leave(self, num_completions: int) -> None:
        """Uncount completions that have ended."""
        self._num_inflight -= num_completions

    def _check_inflight(self, num_more: int) -> None:
        limit = self._key.max_inflight
        if limit is not None and self._num_inflight + num_more > limit:
            uploads = f" and {self._num_uploads} requests being received" if self._num_uploads else ""
            text = f"the API key has {self._num_inflight} completions in flight{uploads}, and its limit is {limit}"
            raise KeyLimitReached(text, 1, "requests")

    def charge(self, num_tokens: int) -> None:
        """Charge tokens of a prompt or an output."""
        if num_tokens and (tokens := self._buckets.get("tokens")) is not None:
            tokens.take(num_tokens, self._clock())

    def headers(self) -> Mapping[str, str]:
        """Return the rate limits and what is left of them, as OpenAI's `x-ratelimit-*` headers."""
        if not self._buckets:
            return NOTHING
        now_s = self._clock()
        headers: dict[str, str] = {}
        for kind, bucket in self._buckets.items():
            headers[f"x-ratelimit-limit-{kind}"] = str(bucket.per_minute)
            headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(bucket.level(now_s))))
            headers[f"x-ratelimit-reset-{kind}"] = duration(bucket.full_s(now_s))
        return headers


def duration(seconds: float) -> str:
    """Format seconds as OpenAI does: 12ms, 7.66s, 6m0s, 1h2m3s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{math.ceil(seconds * 100) / 100:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
