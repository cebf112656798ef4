"""How long requests wait for one of many servers."""

from dataclasses import dataclass
from math import exp, log1p, sqrt
from statistics import NormalDist

from baton.deployment.autoscaling.moments import Moments


def erlang_c(num_servers: int, load: float) -> float:
    """The probability that a request waits in M/M/n, for an offered load in servers.

    Erlang's formula, by the recursion of Erlang B (Cooper, Introduction to Queueing Theory, 1981): with
    1/B(n) = 1 + n/a * 1/B(n-1), C = 1 / ((1 - rho)/B + rho).
    """
    if load <= 0:
        return 0.0
    if load >= num_servers:
        return 1.0
    inverse = 1.0  # of Erlang B; may become infinite, and C zero
    for n in range(1, num_servers + 1):
        inverse = 1 + inverse * n / load
    utilisation = load / num_servers
    return 1 / (inverse * (1 - utilisation) + utilisation)


@dataclass(frozen=True, slots=True)
class Wait:
    """A time that is zero, or else exponential: exact for M/M/n, and the limit of G/G/n under heavy traffic."""

    probability: float  # of waiting at all
    delayed_s: float  # mean of those that wait

    @property
    def mean(self) -> float:
        """Of all."""
        return self.probability * self.delayed_s

    @property
    def variance(self) -> float:
        """Of all."""
        return self.probability * (2 - self.probability) * self.delayed_s * self.delayed_s


def queue_wait(num_servers: int, requests_per_s: float, service: Moments, arrival_cv2: float) -> Wait | None:
    """The wait in G/G/n in order of arrival; None where the queue grows without end.

    Allen and Cunneen: Wq = C(n, a) * E[S] / (n - a) * (ca2 + cs2) / 2 (Allen, Probability, Statistics, and Queueing
    Theory, 1990), which for one server is Kingman's bound (The single server queue in heavy traffic, 1961).
    """
    load = requests_per_s * service.mean
    if load >= num_servers:
        return None
    delayed_s = service.mean / (num_servers - load) * (arrival_cv2 + service.cv2) / 2
    return Wait(erlang_c(num_servers, load), delayed_s)


def normal_quantile(quantile: float) -> float:
    """How many standard deviations above the mean a normal variable's quantile is."""
    return NormalDist().inv_cdf(quantile)


def quantile_of(mean: float, variance: float, quantile: float) -> float:
    """The quantile of a sum of waits and lengths, as of a log-normal variable with the same two moments.

    Fenton, The sum of log-normal probability distributions in scatter transmission systems (1960). Prompt lengths are
    nearly log-normal. With ever more variance the fit's quantile would fall again; there it stays what it was at most.
    """
    if mean <= 0:
        return 0.0
    z = normal_quantile(quantile)
    sigma = min(sqrt(log1p(variance / (mean * mean))), z)
    return mean * exp(z * sigma - sigma * sigma / 2)
