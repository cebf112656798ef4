"""Prefill and decode rates of an engine, estimated from its step times."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.scheduling.schedule import ScheduledRequest

DECAY = 0.97  # of a step's weight with each later step of its kind: about the last thirty count
# If all steps are alike, it is unknown which term took the time. The ridge assigns it to the column that is
# largest in these units: to a long prompt, to the sequences only if there are very many, otherwise to the fixed term.
PROMPT_UNIT = 128  # tokens
SEQUENCE_UNIT = 256
ATTENDED_UNIT = 16384 * PROMPT_UNIT
RIDGE = 1e-5  # relative to the fixed column's weight
NUM_TERMS = 4  # terms of a step's time: fixed, per decoding sequence, per prompt token, per token attended to


@dataclass(frozen=True, slots=True)
class StepWork:
    """Amount of work in one step."""

    num_sequences: int  # sequences that decoded one token
    num_prompt_tokens: int  # prompt tokens, and tokens recomputed after a preemption
    num_attended: int = 0  # tokens that each prompt token attends to, itself included, summed over prompt tokens

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRequest]) -> "StepWork":
        """Return the work of a step, without drafts.

        A single remaining prompt token counts as a decode, since it costs the same.
        """
        prompts = [item for item in scheduled if item.num_known_tokens > 1]
        return cls(
            len(scheduled) - len(prompts),
            sum(item.num_new_tokens for item in prompts),
            sum(_num_attended(item.start, item.num_new_tokens) for item in prompts),
        )


@dataclass(frozen=True, slots=True)
class StepRates:
    """Terms of a step's time; 0: not known yet."""

    prefill_tokens_per_s: float = 0.0  # without the step's fixed time, at the recent mean depth in the prompts
    decode_step_s: float = 0.0  # time of a step with one sequence
    decode_sequence_s: float = 0.0  # time that each further sequence adds


@dataclass(slots=True)
class _Sums:
    """Decayed sums of a weighted least-squares fit, for one kind of step."""

    products: list[list[float]] = field(default_factory=lambda: [[0.0] * NUM_TERMS for _ in range(NUM_TERMS)])
    targets: list[float] = field(default_factory=lambda: [0.0] * NUM_TERMS)

    def add(self, columns: Sequence[float]) -> None:
        for i in range(NUM_TERMS):
            row = self.products[i]
            for j in range(NUM_TERMS):
                row[j] = DECAY * row[j] + columns[i] * columns[j]
            self.targets[i] = DECAY * self.targets[i] + columns[i]


class StepTimes:
    """Least-squares fit of recent step times: fixed, per decoding sequence, per prompt token, per token attended to.

    The last term is needed because late chunks of long prompts take longer with no more tokens; without it, the fitted
    time per token would drop to zero or below.

    Errors are relative to the step's time, so that a rare delayed step counts little. Steps with and without prompt
    tokens are summed separately, so that a long run of one kind does not make the fit forget the other.
    """

    def __init__(self) -> None:
        self._decodes = _Sums()
        self._prefills = _Sums()
        self._most_prompt_tokens = 0  # largest step so far
        self._num_prompt_tokens = 0.0  # recent, decayed like the sums
        self._num_attended = 0.0

    def add(self, work: StepWork, step_s: float) -> None:
        """Add the duration of a step; ignored if it is not positive."""
        if step_s <= 0:
            return
        self._most_prompt_tokens = max(self._most_prompt_tokens, work.num_prompt_tokens)
        if work.num_prompt_tokens:
            self._num_prompt_tokens = DECAY * self._num_prompt_tokens + work.num_prompt_tokens
            self._num_attended = DECAY * self._num_attended + work.num_attended
        columns = (
            1 / step_s,
            work.num_sequences / SEQUENCE_UNIT / step_s,
            work.num_prompt_tokens / PROMPT_UNIT / step_s,
            work.num_attended / ATTENDED_UNIT / step_s,
        )
        (self._prefills if work.num_prompt_tokens else self._decodes).add(columns)

    def rates(self) -> StepRates:
        """Return the rates fitted to the steps so far."""
        products = [
            [a + b for a, b in zip(*rows, strict=True)]
            for rows in zip(self._decodes.products, self._prefills.products, strict=True)
        ]
        if not products[0][0]:
            return StepRates()
        ridge = RIDGE * products[0][0]
        for i in range(NUM_TERMS):
            products[i][i] += ridge
        targets = [a + b for a, b in zip(self._decodes.targets, self._prefills.targets, strict=True)]
        fixed_s, sequences_s, prompt_s, attended_s = _fit(products, targets)
        sequence_s = sequences_s / SEQUENCE_UNIT
        return StepRates(
            prefill_tokens_per_s=self._prompt_rate(prompt_s / PROMPT_UNIT, attended_s / ATTENDED_UNIT),
            decode_step_s=fixed_s + sequence_s,
            decode_sequence_s=sequence_s,
        )

    def _prompt_rate(self, token_s: float, attended_s: float) -> float:
        """Return the rate of prompt tokens that attend to as many tokens as recent ones did."""
        if self._most_prompt_tokens < PROMPT_UNIT:
            return 0.0  # small chunks do not predict the cost of large ones
        prompts_s = self._num_prompt_tokens * token_s + self._num_attended * attended_s
        return self._num_prompt_tokens / prompts_s if prompts_s else 0.0


def _num_attended(num_computed: int, num_new: int) -> int:
    """Return how many tokens a chunk's tokens attend to, summed over the chunk."""
    return num_new * num_computed + num_new * (num_new + 1) // 2


def _fit(products: list[list[float]], targets: list[float]) -> list[float]:
    """Return a least-squares solution without negative terms, dropping the most negative term until none is left."""
    kept = list(range(NUM_TERMS))
    solution = [0.0] * NUM_TERMS
    while kept:
        values = _solve([[products[i][j] for j in kept] for i in kept], [targets[i] for i in kept])
        lowest = min(range(len(kept)), key=values.__getitem__)
        if values[lowest] >= 0:
            for i, value in zip(kept, values, strict=True):
                solution[i] = value
            break
        del kept[lowest]
    return solution


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Solve a positive definite system by Gaussian elimination."""
    size = len(right)
    for i in range(size):
        for j in range(i + 1, size):
            factor = matrix[j][i] / matrix[i][i]
            for k in range(i, size):
                matrix[j][k] -= factor * matrix[i][k]
            right[j] -= factor * right[i]
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(matrix[i][k] * solution[k] for k in range(i + 1, size))
        solution[i] = (right[i] - rest) / matrix[i][i]
    return solution
