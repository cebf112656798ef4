"""The drafts for a step: offers of a drafter, and how many tokens of each are worth their time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from baton.engine.request import Request
from baton.engine.speculation.acceptance import Acceptance
from baton.engine.speculation.base import Offer
from baton.engine.speculation.price import Candidate, StepCost, draft_lengths
from baton.engine.speculation.probe_budget import ProbeBudget

TRIAL_SHARE = 0.25  # of a request's remaining time, for a preparation that may not pay
UNKNOWN = StepCost(0.0, 0.0, 0.0)
EXPECTED_TOKENS = 256  # that a request generates after its preparation, unless it ends earlier by its length


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens that a drafter offers for a request of a step."""

    place: int  # of the request among those of the step
    request: Request
    offer: Offer
    acceptance: Acceptance
    num_left: int  # tokens that the request may still generate, without the last


@dataclass(frozen=True, slots=True)
class Prices:
    """Estimated times of a step, and how many drafted tokens it may have."""

    cost: StepCost
    pass_s: Callable[[int], float]  # time of drafting a token for each of some requests
    num_delayed: int  # tokens that the step computes without drafts, those of other ranks included
    most: int

    def lengths(self, proposals: Sequence[Proposal], probed: Sequence[int] = ()) -> Sequence[int]:
        """Return how many tokens of each proposal to verify; `probed` are the places of those with at least one."""
        candidates = [
            Candidate(each.offer.num_tokens, each.acceptance.rate, int(place in probed))
            for place, each in enumerate(proposals)
        ]
        return draft_lengths(candidates, self.num_delayed, self.of(len(proposals)), self.most)

    def of(self, num_requests: int) -> StepCost:
        """Return the cost with the passes of a drafter for some requests."""
        return replace(self.cost, pass_s=self.pass_s(num_requests))


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The proposals for a step, and how many tokens of each to verify."""

    proposals: Sequence[Proposal] = ()  # of which the drafter is ready
    lengths: Sequence[int] = ()
    num_probes: int = 0
    cost: StepCost = UNKNOWN
    unready: Sequence[Proposal] = ()  # for which the drafter should get ready
    num_waiting: int = 0  # proposals for which it is not ready, whether it should get ready or not
    left_out: Sequence[Acceptance] = ()  # of proposals of which no token is verified
    pays: bool = False  # whether drafts would, apart from probes, if the drafter were ready for all proposals

    @classmethod
    def of(
        cls, proposals: Sequence[Proposal], prices: Prices, probes: ProbeBudget, *, is_trial_due: bool
    ) -> "DraftPlan":
        """Return the plan with the most tokens per second. Drafts of requests that are not ready may come later.

        is_trial_due: if the drafter is ready for no request, it gets ready for one, although that is not expected to
        pay, to measure the acceptance again.
        """
        ready = [each for each in proposals if each.offer.is_ready]
        waiting = [each for each in proposals if not each.offer.is_ready]
        cost = prices.of(len(ready))
        due = [place for place, each in enumerate(ready) if each.acceptance.is_probe_due]
        probed = due[: probes.affordable(len(due), cost)]
        lengths = prices.lengths(ready, probed)
        wanted = prices.lengths([*ready, *waiting]) if waiting or probed else lengths
        left_out = [each.acceptance for each, length in zip(ready, lengths, strict=True) if not length]
        return cls(
            ready,
            lengths,
            len(probed),
            cost,
            _to_prepare([*ready, *waiting], wanted, prices, is_trial_due=is_trial_due and not ready) if waiting else (),
            len(waiting),
            [*left_out, *(each.acceptance for each in waiting)],
            any(wanted),
        )


def _to_prepare(
    proposals: Sequence[Proposal], lengths: Sequence[int], prices: Prices, *, is_trial_due: bool
) -> Sequence[Proposal]:
    """Return the proposals that pay for their preparation; only the fastest one until the time of drafting is known.

    lengths: tokens of each that pay. The gain is that of a step with drafts of all requests, for as many tokens as the
    request is expected to generate.
    """
    cost = prices.of(len(proposals))
    num_tokens = float(prices.num_delayed)
    for each, length in zip(proposals, lengths, strict=True):
        num_tokens += sum(each.acceptance.rate**count for count in range(1, length + 1))
    step_s = cost.plain_s + cost.drafting_s + max(lengths) * cost.pass_s + sum(lengths) * cost.draft_s
    saved_s = cost.plain_s / prices.num_delayed - step_s / num_tokens  # of each token
    waiting = [each for each in zip(proposals, lengths, strict=True) if not each[0].offer.is_ready]
    paying = [
        each
        for each, length in waiting
        if length and min(each.num_left, EXPECTED_TOKENS) * saved_s > each.offer.preparation_s
    ]
    if cost.pass_s and (paying or not is_trial_due):
        return paying
    most_s = TRIAL_SHARE * cost.plain_s / prices.num_delayed  # for each token that is left
    candidates = paying or [
        each for each, _ in waiting if is_trial_due and each.offer.preparation_s < most_s * each.num_left
    ]
    return sorted(candidates, key=lambda each: each.offer.preparation_s)[:1]
