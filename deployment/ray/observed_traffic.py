"""The traffic of all routers as one."""

from collections.abc import Iterable, Sequence
from math import inf

from baton.deployment.autoscaling.answer_length import answer_moments
from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.snapshot import Traffic
from baton.membership.registry.router_report import SampleSums, TrafficReport

MIN_GAPS = 20  # fewer say nothing of how irregular they are


def merged_traffic(reports: Sequence[TrafficReport]) -> Traffic:
    """What came to any of them.

    Rates add up. So do, weighted by their rates, the variations of streams that come together (the asymptotic method of
    Whitt, The queueing network analyzer, 1983). The window is the one in which as many requests come at that rate.
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
        arrival_cv2=variation / requests_per_s,
        prompt_tokens=moments_of(each.prompt_tokens for each in reports),
        uncached_tokens=moments_of(each.uncached_tokens for each in reports),
        output_tokens=merged_answers(reports),
        num_ended=sum(each.output_tokens.num for each in reports),
        remote_share=min(1.0, sum(each.num for each in remote) / num_prompts) if is_split else 1.0,
        remote_tokens=moments_of(remote) if is_split else None,
    )


def merged_answers(reports: Sequence[TrafficReport]) -> Moments:
    """The lengths of all answers, those that still run too where all routers count their tokens."""
    generated = [each.num_generated_tokens for each in reports if each.num_generated_tokens is not None]
    return answer_moments(
        moments_of(each.output_tokens for each in reports),
        sum(each.output_tokens.num for each in reports),
        sum(generated) if len(generated) == len(reports) else None,
        moments_of(each.asked_tokens for each in reports).mean or inf,
    )


def moments_of(parts: Iterable[SampleSums]) -> Moments:
    """Of all samples together."""
    sums = sum(parts, SampleSums())
    return Moments(sums.total / sums.num, sums.squares / sums.num) if sums.num else Moments()


def gaps_cv2(gaps_s: SampleSums) -> float:
    """The squared coefficient of variation; that of Poisson arrivals where too few came."""
    return moments_of([gaps_s]).cv2 if gaps_s.num >= MIN_GAPS and gaps_s.total > 0 else 1.0
