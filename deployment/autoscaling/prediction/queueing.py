"""Waiting times of a queue with several servers."""

from dataclasses import dataclass
from functools import cache
from math import exp, log1p, sqrt
from statistics import NormalDist

from baton.deployment.autoscaling.moments import Moments


def erlang_c(num_servers: int, load: float) -> float:
    """Return the probability that a request waits in M/M/n. `load` is the offered load in servers.

    Erlang's formula, by the recursion of Erlang B (Cooper, Introduction to Queueing Theory, 1981): with
    1/B(n) = 1 + n/a * 1/B(n-1), C = 1 / ((1 - rho)/B + rho).
    """
    if load <= 0:
        return 0.0
    if load >= num_servers:
        return 1.0
    inverse = 1.0  # 1 / Erlang B; may overflow to infinity, which makes C zero
    for n in range(1, num_servers + 1):
        inverse = 1 + inverse * n / load
    utilisation = load / num_servers
    return 1 / (inverse * (1 - utilisation) + utilisation)


@dataclass(frozen=True, slots=True)
class Wait:
    """Waiting time: zero or exponential. Exact for M/M/n, and the heavy-traffic limit of G/G/n."""

    probability: float  # of waiting at all
    delayed_s: float  # mean of the requests that wait

    @property
    def mean(self) -> float:
        """Mean over all requests, in seconds."""
        return self.probability * self.delayed_s

    @property
    def variance(self) -> float:
        """Variance over all requests."""
        return self.probability * (2 - self.probability) * self.delayed_s * self.delayed_s


def queue_wait(num_servers: int, requests_per_s: float, service: Moments, arrival_cv2: float) -> Wait | None:
    """Return the wait in a FIFO G/G/n queue; None if the queue is unstable.

    Allen and Cunneen: Wq = C(n, a) * E[S] / (n - a) * (ca2 + cs2) / 2 (Allen, Probability, Statistics, and Queueing
    Theory, 1990), which for one server is Kingman's bound (The single server queue in heavy traffic, 1961).
    """
    load = requests_per_s * service.mean
    if load >= num_servers:
        return None
    delayed_s = service.mean / (num_servers - load) * (arrival_cv2 + service.cv2) / 2
    return Wait(erlang_c(num_servers, load), delayed_s)


@cache
def normal_quantile(quantile: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return NormalDist().inv_cdf(quantile)


def quantile_of(mean: float, variance: float, quantile: float) -> float:
    """Return the quantile of a log-normal variable with these moments, for a sum of waits and service times.

    Fenton, The sum of log-normal probability distributions in scatter transmission systems (1960). Prompt lengths are
    nearly log-normal. For very large variance the quantile of the fit would fall again; it is kept at its maximum.
    """
    if mean <= 0:
        return 0.0
    z = normal_quantile(quantile)
    sigma = min(sqrt(log1p(variance / (mean * mean))), z)
    return mean * exp(z * sigma - sigma * sigma / 2)
