"""How fast the workers end what they were given, while more waits for them."""

import math

SPAN_S = 10.0  # busy time over which the rate is a mean, with exponentially falling weights
GUESS_WEIGHT_S = 1.0  # busy time that the guess counts as much as
NUM_HELD = 32  # choices over which the time that each takes is a mean


class ServiceRate:
    """Owns the estimate of the choices that end in a second.

    Only while requests wait is the number of ends a measure of what the workers can do: otherwise it is that of the
    arrivals. Until such time has passed the estimate is a guess by Little's law, from how long choices take and how
    many are being generated. It is too high where a fuller batch is slower, so nobody is sent away for it too early.
    """

    def __init__(self) -> None:
        self._busy_from_s: float | None = None  # None: nobody waits
        self._num_ended = 0.0  # in busy time, the older the less
        self._busy_s = 0.0  # weighted the same
        self._held_s: float | None = None  # mean time from a choice's admission to its end

    def busy(self, now_s: float) -> None:
        """Requests wait from now on."""
        if self._busy_from_s is None:
            self._busy_from_s = now_s

    def idle(self, now_s: float) -> None:
        """Nobody waits any more."""
        self._pass(now_s)
        self._busy_from_s = None

    def ended(self, now_s: float, num_choices: int, held_s: float) -> None:
        """Choices ended that were admitted `held_s` ago."""
        weight = min(1.0, num_choices / NUM_HELD)
        self._held_s = held_s if self._held_s is None else self._held_s + (held_s - self._held_s) * weight
        if self._busy_from_s is not None:
            self._pass(now_s)
            self._num_ended += num_choices

    def per_s(self, now_s: float, num_inflight: int) -> float | None:
        """Choices that end in a second; None before the first ended."""
        self._pass(now_s)
        if not self._held_s or not num_inflight:
            return self._num_ended / self._busy_s if self._num_ended and self._busy_s else None
        guess = num_inflight / self._held_s
        return (self._num_ended + guess * GUESS_WEIGHT_S) / (self._busy_s + GUESS_WEIGHT_S)

    def _pass(self, now_s: float) -> None:
        """Lets busy time pass."""
        if self._busy_from_s is None:
            return
        kept = math.exp((self._busy_from_s - now_s) / SPAN_S)
        self._num_ended *= kept
        self._busy_s = self._busy_s * kept + SPAN_S * (1 - kept)
        self._busy_from_s = now_s
