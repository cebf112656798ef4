"""Statistics of an engine's outputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from benchmarks.engines.cells import NUM_OUTPUT_TOKENS, Cell
from benchmarks.engines.drivers.driver import Answer
from benchmarks.engines.interference import Interference

Tokens = Sequence[Sequence[int]]  # of each request's output


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a cell."""

    answers: list[Answer]
    peak_bytes: int
    interference: Interference
    seed: int  # of its prompts

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all requests over the time from the first start to the last end."""
        started_s = min(answer.submitted_s for answer in self.answers)
        ended_s = max(answer.last_s for answer in self.answers)
        return sum(len(answer.token_ids) for answer in self.answers) / (ended_s - started_s)

    def prefill_tokens_per_s(self, cell: Cell) -> float:
        """Prompt tokens of the first concurrent requests over the time until all of them had a first token.

        For a single client, the median of its requests.
        """
        if cell.concurrency == 1:
            return cell.prompt_len / median(answer.first_s - answer.submitted_s for answer in self.answers)
        first = self.answers[: cell.concurrency]
        seconds = max(answer.first_s for answer in first) - min(answer.submitted_s for answer in first)
        return cell.prompt_len * len(first) / seconds


@dataclass(slots=True)
class Samples:
    """Runs of one engine in one cell, without discarded ones."""

    cell: Cell
    taken: list[Sample] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        """Median over all requests."""
        return 1e3 * median(answer.first_s - answer.submitted_s for answer in self._answers)

    @property
    def tpot_ms(self) -> float:
        """Median over all requests of the mean time per token after the first."""
        return 1e3 * median((answer.last_s - answer.first_s) / (NUM_OUTPUT_TOKENS - 1) for answer in self._answers)

    @property
    def tokens_per_s(self) -> float:
        """Median over the runs."""
        return median(sample.tokens_per_s for sample in self.taken)

    @property
    def spread(self) -> float:
        """Range of the runs' output rates over their median."""
        rates = [sample.tokens_per_s for sample in self.taken]
        return (max(rates) - min(rates)) / median(rates)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Median over the runs."""
        return median(sample.prefill_tokens_per_s(self.cell) for sample in self.taken)

    @property
    def peak_bytes(self) -> int:
        """Maximum over the runs."""
        return max(sample.peak_bytes for sample in self.taken)

    def token_ids(self) -> dict[int, Tokens]:
        """Output tokens by the seed of the prompts."""
        return {sample.seed: [answer.token_ids for answer in sample.answers] for sample in self.taken}

    @property
    def _answers(self) -> list[Answer]:
        return [answer for sample in self.taken for answer in sample.answers]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of two engines' greedy outputs, which diverge after the first difference."""

    first_token: float  # fraction of requests with the same first token
    prefix: float  # mean fraction of an output before the first difference


def agreement(ours: Mapping[int, Tokens], theirs: Mapping[int, Tokens]) -> Agreement | None:
    """Compare outputs for the prompts that both engines had; None if there are none."""
    pairs = [
        pair for seed in sorted(ours.keys() & theirs.keys()) for pair in zip(ours[seed], theirs[seed], strict=True)
    ]
    if not pairs:
        return None
    lengths = [_num_equal(one, other) for one, other in pairs]
    return Agreement(
        first_token=mean(length > 0 for length in lengths),
        prefix=mean(length / len(one) for length, (one, _) in zip(lengths, pairs, strict=True)),
    )


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    length = 0
    for left, right in zip(one, other, strict=True):
        if left != right:
            break
        length += 1
    return length
