"""The times that are promised, and what it costs to come near them.

A delay in seconds does not say what it does to a request: far from its target little, near it everything. So a time
that is the share `x` of its target costs `SLOPE * x + x ** POWER`, in units of the time to the first token that is
promised; and a plan costs what it adds to that, at its own request and at those that decode where it computes or
decodes.
"""

from dataclasses import dataclass

from router.cluster import RoutedRequest, WorkerRole
from router.worker_times import WorkerTimes

SLOPE = 0.3
POWER = 4
STEEP_SHARE = 3.0  # beyond it the cost grows no steeper, but grows: else nothing would ever be done about a long queue
MOST_PROMPT_SHARE = 0.85  # of a worker's time; with all of it there would be no tokens
TIGHT_SHARE = 0.85  # from here on a worker has as many sequences as it should: nothing comes evenly


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

    def joining_s(self, decode: WorkerTimes) -> float:
        """Cost of one more sequence in a worker's steps: of its own tokens, and of all others' there."""
        before, after = (_cost(self.token_share(decode, num_more)) for num_more in (0, 1))
        num_decoding = _num_decoding(decode)
        return self.ttft_s * ((num_decoding + 1) * after - num_decoding * before)

    def disturbing_s(self, request: RoutedRequest, worker: WorkerTimes, work_s: float, num_more: int) -> float:
        """Cost of a prompt's computation to those that decode there, `num_more` that join too, and one that comes."""
        delay = self._delay(request, work_s)
        num_decoding = _num_decoding(worker)
        share = self.token_share(worker, num_more)
        return self.ttft_s * (num_decoding * (_cost(share + delay) - _cost(share)) + SLOPE * delay)

    def pause_s(self, request: RoutedRequest, seconds: float) -> float:
        """Cost of a pause in one answer that is far from its target."""
        return self.ttft_s * SLOPE * self._delay(request, seconds)

    def _step_share(self, worker: WorkerTimes, num_more: int) -> float:
        num_sequences = max(1, _num_decoding(worker) + num_more)
        step_s = worker.rates.decode_step_s + worker.rates.decode_sequence_s * (num_sequences - 1)
        return step_s / self.tpot_s

    def _delay(self, request: RoutedRequest, seconds: float) -> float:
        """What seconds add to the time per token of an answer of the usual length, as a share of the target."""
        return seconds / (request.mean_output_tokens * self.tpot_s)


def _num_decoding(worker: WorkerTimes) -> int:
    """Sequences that decode there, or will."""
    if worker.worker.role is WorkerRole.PREFILL:
        return 0
    return max(0, worker.num_running - worker.worker.num_prefills)


def _cost(share: float) -> float:
    return SLOPE * share + _power(share)


def _power(share: float) -> float:
    """`share ** POWER`, and beyond `STEEP_SHARE` its tangent there."""
    steep = min(share, STEEP_SHARE)
    return float(steep**POWER + POWER * STEEP_SHARE ** (POWER - 1) * (share - steep))
