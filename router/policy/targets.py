"""The times that are promised, and what it costs to come near them.

A delay in seconds does not say what it does to a request: far from its target little, near it everything. So a time
that is the share `x` of its target costs `SLOPE * x + x ** POWER`, in units of the time to the first token that is
promised; and a plan costs what it adds to that, at its own request and at those that decode where it computes or
decodes. A first token that is later costs ever more, for else nothing would be done about a queue. An answer whose
tokens come too slowly is lost, and costs little more if they come slower still.

One prompt that is computed in between is nothing to an answer of hundreds of tokens, and makes one of ten tokens come
too slowly. So its cost is that to answers of several typical lengths: to those that decode, of which the long ones are
more than among those that come, since they stay longer; and to those that come while it is computed.
"""

from dataclasses import dataclass

from baton.router.policy.cluster import RoutedRequest, WorkerRole
from baton.router.policy.rates import WorkerTimes

SLOPE = 0.3
POWER = 4
STEEP_SHARE = 3.0  # beyond it the cost grows no steeper, but grows: else nothing would ever be done about a long queue
LOST_SHARE = 1.2  # of the time per token: such an answer is lost
LOST_SLOPE = 0.5  # beside the other one, of what is lost anyway
DEAREST_SHARE = (LOST_SLOPE / POWER) ** (1 / (POWER - 1))  # from which it costs most to be lost
MOST_PROMPT_SHARE = 0.85  # of a worker's time; with all of it there would be no tokens
TIGHT_SHARE = 0.92  # from here on a worker has as many sequences as it should: not all that comes is seen in time


@dataclass(frozen=True, slots=True)
class Targets:
    """What a request is promised."""

    ttft_s: float
    tpot_s: float

    def late_s(self, ttft_s: float) -> float:
        """Cost of a first token after so long, beside these seconds themselves."""
        return self.ttft_s * _power(ttft_s / self.ttft_s)

    def token_share(self, worker: WorkerTimes, num_more: int) -> float:
        """The time per token at a worker with so many more sequences, as a share of the target: that of a step, in
        what prompts leave of the worker's time.
        """
        prompt_share = min(MOST_PROMPT_SHARE, worker.worker.prompt_share) if worker.num_running else 0.0
        return self._step_share(worker, num_more) / (1 - prompt_share)

    def is_tight(self, decode: WorkerTimes) -> bool:
        """Whether decoding alone takes nearly the time that is promised, with one more sequence there."""
        return self._step_share(decode, num_more=1) > TIGHT_SHARE

    def joining_s(self, request: RoutedRequest, decode: WorkerTimes) -> float:
        """Cost of one more sequence in a worker's steps: of its own tokens, and of all others' there for its time."""
        before, after = (_token_cost(self.token_share(decode, num_more)) for num_more in (0, 1))
        stay = request.expected_output_tokens / request.mean_output_tokens
        return self.ttft_s * (after + stay * _num_decoding(decode) * (after - before))

    def disturbing_s(self, request: RoutedRequest, worker: WorkerTimes, work_s: float, num_more: int) -> float:
        """Cost of a prompt's computation to those that decode there, `num_more` that join too, and those that come."""
        num_decoding, share = _num_decoding(worker), self.token_share(worker, num_more)
        lengths = request.typical_output_tokens or (request.mean_output_tokens,)
        mean = sum(lengths) / len(lengths)
        there = comes = 0.0  # an answer of the mean length, by chance one that decodes, and one that comes
        for length in lengths:
            there += length / mean * self._slowing(share, work_s / length) / len(lengths)
            comes += self._slowing(share, work_s / 2 / length) / len(lengths)  # on average in the middle of it
        step_s = self.tpot_s * self._step_share(worker, num_more)
        num_coming = _num_coming(worker) * work_s / (mean * step_s) if step_s > 0 else 0.0
        next_prompt = SLOPE * work_s / (request.mean_output_tokens * self.tpot_s)  # waits for this one
        return self.ttft_s * (num_decoding * there + num_coming * comes + next_prompt)

    def pause_s(self, request: RoutedRequest, seconds: float) -> float:
        """Cost of a pause in the request's own answer, as long as that is far from its target."""
        return self.ttft_s * SLOPE * seconds / (request.expected_output_tokens * self.tpot_s)

    def _slowing(self, share: float, token_s: float) -> float:
        """Cost of so much more for each token of an answer that comes at this share of the target; no less for one that
        comes at a higher one. For one that is lost anyway it is less, but who is slowest must not be asked for more.
        """
        delay = token_s / self.tpot_s
        share = min(share, max(DEAREST_SHARE, LOST_SHARE - delay))
        return _token_cost(share + delay) - _token_cost(share)

    def _step_share(self, worker: WorkerTimes, num_more: int) -> float:
        num_sequences = max(1, _num_decoding(worker) + num_more)
        step_s = worker.rates.decode_step_s + worker.rates.decode_sequence_s * (num_sequences - 1)
        return step_s / self.tpot_s


def _num_decoding(worker: WorkerTimes) -> int:
    """Sequences that decode there, or will."""
    if worker.worker.role is WorkerRole.PREFILL:
        return 0
    num_decoding = max(0, worker.worker.num_requests - worker.worker.num_prefills)
    return min(worker.num_running, num_decoding)  # a batch is no larger, however many wait


def _num_coming(worker: WorkerTimes) -> int:
    """Sequences that come in the time that one stays: as many as there are (Little, 1961), and to a worker for decoding
    one at least.
    """
    return max(_num_decoding(worker), int(worker.worker.role is WorkerRole.DECODE))


def _token_cost(share: float) -> float:
    """Of a time per token: linear once it is lost."""
    kept = min(share, LOST_SHARE)
    return float(SLOPE * share + kept**POWER + LOST_SLOPE * (share - kept))


def _power(share: float) -> float:
    """`share ** POWER`, and beyond `STEEP_SHARE` its tangent there."""
    steep = min(share, STEEP_SHARE)
    return float(steep**POWER + POWER * STEEP_SHARE ** (POWER - 1) * (share - steep))
