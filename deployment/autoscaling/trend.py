"""The trend of the request rate, and the rate to expect when a replica that is requested now is ready."""

from dataclasses import dataclass, replace
from math import exp, sqrt

from baton.deployment.autoscaling.snapshot import Traffic

MEMORY_S = 900.0  # after which a measurement counts 1/e
MAX_RISE = 0.5  # of the present rate; a load that grows faster than this is left to the queue
SURE = 3.0  # standard errors that a slope must have to count


@dataclass(frozen=True, slots=True)
class Trend:
    """Weighted linear regression of the request rate over time; a measurement's weight falls exponentially with age.

    The sums are relative to the last measurement's time, so that their precision does not depend on the clock.
    """

    weight: float = 0.0
    t: float = 0.0  # weighted sums of times,
    tt: float = 0.0  # their squares,
    rate: float = 0.0  # rates,
    t_rate: float = 0.0  # and products of both

    def after(self, requests_per_s: float, dt_s: float) -> "Trend":
        """Return the trend with a rate that was measured `dt_s` after the last one and weighs as much as its time."""
        kept = exp(-dt_s / MEMORY_S)
        t, tt = self.t - dt_s * self.weight, self.tt - 2 * dt_s * self.t + dt_s**2 * self.weight
        t_rate = self.t_rate - dt_s * self.rate
        return Trend(
            kept * self.weight + dt_s, kept * t, kept * tt, kept * self.rate + dt_s * requests_per_s, kept * t_rate
        )

    def expected(self, traffic: Traffic, ahead_s: float) -> Traffic:
        """Return the traffic `ahead_s` from now: more than the present one if the rate is surely rising, never less."""
        spread = self.tt * self.weight - self.t**2  # squared weight times variance of the times
        rate, window_s = traffic.requests_per_s, traffic.window_s
        if spread <= 0 or rate <= 0 or window_s <= 0:
            return traffic
        slope = (self.t_rate * self.weight - self.t * self.rate) / spread
        # Measurements of overlapping windows: as many independent ones as windows fit into the weighted time.
        error_of_rate = sqrt(traffic.arrival_cv2 * rate / window_s)
        error = error_of_rate * sqrt(window_s * self.weight / spread)
        if slope <= SURE * error:
            return traffic
        return replace(traffic, requests_per_s=rate + min(slope * ahead_s, MAX_RISE * rate))
