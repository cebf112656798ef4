"""Latency targets, and the cost of coming close to them.

The effect of a delay depends on the target: far from it little, close to it everything. A latency of a share `x` of its
target costs `SLOPE * x + x ** POWER`, in units of the TTFT target. A plan costs what it adds to that, for its own
request and for those that decode where it computes or decodes. The cost of a late first token grows without bound,
otherwise long queues would never be relieved. A response whose tokens are too slow is lost, and costs little more if
they get slower still.

A single prompt computed in between hardly affects a response of hundreds of tokens, but makes one of ten tokens too
slow. Its cost is therefore averaged over several typical response lengths: over the sequences that decode (more of them
are long than among arrivals, since they stay longer), and over those that arrive while it is computed.
"""

from dataclasses import dataclass
from math import sqrt

from baton.router.policy.cluster import RoutedRequest, WorkerRole
from baton.router.policy.estimates import WorkerTimes

SLOPE = 0.3
POWER = 4
STEEP_SHARE = 3.0  # beyond it the cost grows linearly, so that long queues still count
LOST_SHARE = 1.2  # of the TPOT target: beyond it the response is lost
LOST_COST = LOST_SHARE**POWER
LOST_SLOPE = 0.5  # in addition to SLOPE, once a response is lost
DEAREST_SHARE = (LOST_SLOPE / POWER) ** (1 / (POWER - 1))  # share at which becoming lost costs most
MOST_PROMPT_SHARE = 0.85  # bound on the share of a worker's time spent on prompts
TIGHT_SHARE = 0.92  # at which a worker counts as full; below 1, since reports lag


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets for TTFT and TPOT, in seconds."""

    ttft_s: float
    tpot_s: float

    def late_s(self, ttft_s: float) -> float:
        """Return the cost of a first token after `ttft_s`, in addition to the seconds themselves."""
        return self.ttft_s * _power(ttft_s / self.ttft_s)

    def token_share(self, worker: WorkerTimes, num_more: int) -> float:
        """Return the TPOT at a worker with `num_more` sequences as a share of the target: the step time, in the part
        of the worker's time that prompts leave.
        """
        return self._step_share(worker, num_more) / _left_by_prompts(worker)

    def is_tight(self, request: RoutedRequest, decode: WorkerTimes) -> bool:
        """Return whether decoding with one more sequence would nearly reach the TPOT target.

        Prompts count only for a worker of both roles, which computes those of others: a decode worker's are its own.
        They do not delay all responses alike: a short one gets several of them, or none.
        After a handover the second token takes about two steps, for one is in progress when the KV arrives. Short
        responses must have room for that, too.
        """
        if decode.worker.role is WorkerRole.BOTH:
            return self._shared_share(request, decode) > TIGHT_SHARE
        shortest = min(request.typical_output_tokens, default=request.mean_output_tokens)
        return self._step_share(decode, num_more=1) * (1 + 1 / shortest) > TIGHT_SHARE

    def joining_s(self, request: RoutedRequest, decode: WorkerTimes, least_prompt_share: float = 0.0) -> float:
        """Return the cost of one more sequence in a worker's steps: for its own tokens and for the others there.

        Prompts take at least `least_prompt_share` of the worker's time.
        """
        left = _left_by_prompts(decode)
        if left > 1 - least_prompt_share:
            left = max(1 - least_prompt_share, 1 - MOST_PROMPT_SHARE)
        before, after = _token_cost(self._step_share(decode, 0) / left), _token_cost(self._step_share(decode, 1) / left)
        stay = request.expected_output_tokens / request.mean_output_tokens
        return self.ttft_s * (after + stay * decode.num_decoding * (after - before))

    def disturbing_s(self, request: RoutedRequest, worker: WorkerTimes, work_s: float, num_more: int) -> float:
        """Return the cost of a prompt's computation: for the sequences that decode there, `num_more` that join, and
        those that arrive meanwhile.

        A prompt for another worker (`num_more` is 0) costs less among responses that are lost anyway. A prompt whose
        response joins them does not: the slowest worker must not attract more sequences.
        """
        next_prompt = SLOPE * work_s / (request.mean_output_tokens * self.tpot_s)  # waits for this one
        # While one sequence stays, as many arrive as there are (Little, 1961), and at least one at a decode worker.
        num_staying = max(worker.num_decoding, int(worker.worker.role is WorkerRole.DECODE))
        if not num_staying:
            return self.ttft_s * next_prompt
        step_share = self._step_share(worker, num_more)
        share, step_s = step_share / _left_by_prompts(worker), self.tpot_s * step_share
        lengths = request.typical_output_tokens or (request.mean_output_tokens,)
        cost, delays = _token_cost(share), work_s / self.tpot_s
        slowing = _joined_slowing if num_more else _slowing
        total = sum(lengths)
        disturbed = 0.0
        if worker.num_decoding:
            there = sum(length * slowing(share, cost, delays / length) for length in lengths)
            disturbed = worker.num_decoding * there / total
        if step_s > 0:  # for those that arrive, on average halfway
            comes = sum(slowing(share, cost, delays / 2 / length) for length in lengths)
            disturbed += num_staying * work_s * comes / (total * step_s)
        return self.ttft_s * (disturbed + next_prompt)

    def pause_s(self, request: RoutedRequest, seconds: float) -> float:
        """Return the cost of a pause in the request's own output, far from its target."""
        return self.ttft_s * SLOPE * seconds / (request.expected_output_tokens * self.tpot_s)

    def _shared_share(self, request: RoutedRequest, worker: WorkerTimes) -> float:
        """Return the TPOT of a short response among the prompts of a worker, with a margin, as a share of the target.

        Prompts arrive at random (Poisson), each taken to be as long as this one. Those that arrive while another one is
        computed delay the response as well: their number has a Borel-Tanner distribution (Tanner, 1953). The margin is
        the delay's standard deviation. A worker that is idle between two prompts is not without them.
        """
        step_share = self._step_share(worker, num_more=1)
        prompt_share = min(MOST_PROMPT_SHARE, worker.worker.prompt_share)
        prompts = step_share * prompt_share / (1 - prompt_share)
        shortest = min(request.typical_output_tokens, default=request.mean_output_tokens)
        work_s = worker.computed / worker.rates.prefill_tokens_per_s
        return step_share + prompts + sqrt(prompts * work_s / (shortest * self.tpot_s)) / (1 - prompt_share)

    def _step_share(self, worker: WorkerTimes, num_more: int) -> float:
        num_others, rates = worker.num_decoding + num_more - 1, worker.rates
        if num_others <= 0:
            return rates.decode_step_s / self.tpot_s
        return (rates.decode_step_s + rates.decode_sequence_s * num_others) / self.tpot_s


DEFAULT_TARGETS = Targets(ttft_s=1.0, tpot_s=0.05)


def _left_by_prompts(worker: WorkerTimes) -> float:
    """Return the share of its time that a worker has left for decoding."""
    if not worker.num_running:
        return 1.0
    prompt_share = worker.worker.prompt_share
    return 1 - (prompt_share if prompt_share < MOST_PROMPT_SHARE else MOST_PROMPT_SHARE)


def _token_cost(share: float) -> float:
    """Return the cost of a TPOT at this share of the target; linear once the response is lost."""
    if share <= LOST_SHARE:
        square = share * share
        return SLOPE * share + square * square
    return SLOPE * share + LOST_COST + LOST_SLOPE * (share - LOST_SHARE)


def _slowing(share: float, cost: float, delay: float) -> float:
    """Return the cost of `delay`, a share of the target, per token of a response at `share`, which is its `cost`."""
    return _token_cost(share + delay) - cost


def _joined_slowing(share: float, cost: float, delay: float) -> float:
    """Return the cost as `_slowing` does, but no less than at any lower share: no discount for a lost response."""
    if share + delay > LOST_SHARE and share > (least := max(DEAREST_SHARE, LOST_SHARE - delay)):
        return _token_cost(least + delay) - _token_cost(least)
    return _token_cost(share + delay) - cost


def _power(share: float) -> float:
    """Return `share ** POWER`, continued beyond `STEEP_SHARE` by its tangent."""
    if share <= STEEP_SHARE:
        return float(share**POWER)
    return float(STEEP_SHARE**POWER + POWER * STEEP_SHARE ** (POWER - 1) * (share - STEEP_SHARE))
