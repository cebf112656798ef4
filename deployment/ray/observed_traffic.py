"""Traffic of all routers together, merged from their reports."""

from collections.abc import Iterable, Sequence
from math import inf

from baton.deployment.autoscaling.input_check import LEAST, MOST
from baton.deployment.autoscaling.moments import Moments, answer_moments
from baton.deployment.autoscaling.snapshot import Arrivals, Traffic
from baton.membership.registry.router_report import SampleSums, TrafficReport

MIN_GAPS = 20  # with fewer arrival gaps, their variation is not estimated


def merged_traffic(reports: Sequence[TrafficReport]) -> Traffic:
    """Merge the traffic of several routers.

    Rates add up. The squared coefficients of variation are averaged, weighted by rate (the asymptotic method of Whitt,
    The queueing network analyzer, 1983). The merged window is the total number of requests divided by the total rate.
    """
    rates = [each.num_requests / each.window_s for each in reports]
    requests_per_s, num_requests = sum(rates), sum(each.num_requests for each in reports)
    if not num_requests:
        return Traffic(window_s=max((each.window_s for each in reports), default=0.0))
    variation = sum(rate * gaps_cv2(each.gaps_s) for rate, each in zip(rates, reports, strict=True))
    remote = [each.remote_tokens for each in reports if each.remote_tokens is not None]
    is_split = len(remote) == len(reports) and (num_prompts := sum(each.uncached_tokens.num for each in reports)) > 0
    return Traffic(
        window_s=num_requests / requests_per_s,
        requests_per_s=requests_per_s,
        arrival_cv2=amount(variation / requests_per_s),
        prompt_tokens=moments_of(each.prompt_tokens for each in reports),
        uncached_tokens=moments_of(each.uncached_tokens for each in reports),
        output_tokens=merged_answers(reports),
        num_ended=sum(each.output_tokens.num for each in reports),
        remote_share=min(1.0, sum(each.num for each in remote) / num_prompts) if is_split else 1.0,
        remote_tokens=moments_of(remote) if is_split else None,
        recent=merged_arrivals(reports),
    )


def merged_arrivals(reports: Sequence[TrafficReport]) -> tuple[Arrivals, ...]:
    """Add up the last seconds' arrivals. A part of the window that some router has not lived through is left out."""
    merged = []
    for parts in zip(*(each.recent for each in reports), strict=False):
        num_requests = sum(each.num_requests for each in parts)
        rate = sum(each.num_requests / each.window_s for each in parts)
        merged.append(Arrivals(num_requests / rate if rate else parts[0].window_s, num_requests))
    return tuple(merged)


def merged_answers(reports: Sequence[TrafficReport]) -> Moments:
    """Return the moments of output lengths; running requests are included if all routers count their tokens."""
    generated = [each.num_generated_tokens for each in reports if each.num_generated_tokens is not None]
    moments = answer_moments(
        moments_of(each.output_tokens for each in reports),
        sum(each.output_tokens.num for each in reports),
        sum(generated) if len(generated) == len(reports) else None,
        moments_of(each.asked_tokens for each in reports).mean or inf,
    )
    return Moments(amount(moments.mean), min(moments.second, MOST * MOST))


def moments_of(parts: Iterable[SampleSums]) -> Moments:
    """Return the moments of all samples together."""
    sums = sum(parts, SampleSums())
    return Moments(sums.total / sums.num, sums.squares / sums.num) if sums.num else Moments()


def gaps_cv2(gaps_s: SampleSums) -> float:
    """Return the squared coefficient of variation of arrival gaps; 1 (Poisson) if there are fewer than MIN_GAPS.

    That of n numbers that are not negative is less than n.
    """
    if gaps_s.num < MIN_GAPS or gaps_s.total <= 0:
        return 1.0
    return min(moments_of([gaps_s]).cv2, float(gaps_s.num))


def amount(value: float) -> float:
    """Return a value within the planner's range of amounts, so that an extreme report is not an invalid one."""
    return min(value, MOST) if value >= LEAST else 0.0
