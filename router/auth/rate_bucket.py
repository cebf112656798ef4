"""A rate, kept by a bucket that is refilled steadily."""


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
