"""How fast an engine is, learnt from its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.schedule import ScheduledRequest

DECAY = 0.97  # of a step's weight with each step of its kind after it: about the last thirty count
# Steps that are all alike leave open what took their time. The ridge gives it to the column that is largest in these
# units: to the prompt if that is long, to the sequences only if there are very many, else to what is fixed.
PROMPT_UNIT = 128  # tokens
SEQUENCE_UNIT = 256
RIDGE = 1e-5  # of the fixed column's weight
NUM_TERMS = 3  # of a step's time: fixed, each decoding sequence, each prompt token


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computed."""

    num_sequences: int  # that decoded one token
    num_prompt_tokens: int  # of prompts, and of what is computed anew after a preemption

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRequest]) -> "StepWork":
        """What is scheduled; a last prompt token alone costs what a decoded one does."""
        num_sequences = sum(item.num_new_tokens == 1 for item in scheduled)
        return cls(num_sequences, sum(item.num_new_tokens for item in scheduled) - num_sequences)


@dataclass(frozen=True, slots=True)
class StepRates:
    """The terms of a step's time; 0: not known yet."""

    prefill_tokens_per_s: float = 0.0  # beside the step's fixed time
    decode_step_s: float = 0.0  # a step with one sequence
    decode_sequence_s: float = 0.0  # each further sequence


@dataclass(slots=True)
class _Sums:
    """The decayed sums of a weighted least-squares fit, for one kind of step."""

    products: list[list[float]] = field(default_factory=lambda: [[0.0] * NUM_TERMS for _ in range(NUM_TERMS)])
    targets: list[float] = field(default_factory=lambda: [0.0] * NUM_TERMS)

    def add(self, columns: Sequence[float]) -> None:
        for i in range(NUM_TERMS):
            row = self.products[i]
            for j in range(NUM_TERMS):
                row[j] = DECAY * row[j] + columns[i] * columns[j]
            self.targets[i] = DECAY * self.targets[i] + columns[i]


class StepTimes:
    """Fits the time of recent steps: fixed, plus so much a sequence, plus so much a prompt token.

    Errors are relative to the step's time, so that a rare step that was held up counts little. Steps with prompt tokens
    and steps without are remembered apart, so that a long spell of one kind does not make the other forgotten.
    """

    def __init__(self) -> None:
        self._decodes = _Sums()
        self._prefills = _Sums()
        self._most_prompt_tokens = 0  # of a step so far

    def add(self, work: StepWork, step_s: float) -> None:
        """A step took so many seconds."""
        if step_s <= 0:
            return
        self._most_prompt_tokens = max(self._most_prompt_tokens, work.num_prompt_tokens)
        columns = (
            1 / step_s,
            work.num_sequences / SEQUENCE_UNIT / step_s,
            work.num_prompt_tokens / PROMPT_UNIT / step_s,
        )
        (self._prefills if work.num_prompt_tokens else self._decodes).add(columns)

    def rates(self) -> StepRates:
        """What the steps so far say."""
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
        fixed_s, sequences_s, prompt_s = _fit(products, targets)
        sequence_s = sequences_s / SEQUENCE_UNIT
        knows_prompts = prompt_s > 0 and self._most_prompt_tokens >= PROMPT_UNIT  # a few tokens say nothing of many
        return StepRates(
            prefill_tokens_per_s=PROMPT_UNIT / prompt_s if knows_prompts else 0.0,
            decode_step_s=fixed_s + sequence_s,
            decode_sequence_s=sequence_s,
        )


def _fit(products: list[list[float]], targets: list[float]) -> list[float]:
    """The least-squares solution without negative terms: the most negative one is left out until there is none."""
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
    """Solves a positive definite system by elimination."""
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
