"""How fast an engine is, learnt from its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.scheduling.schedule import ScheduledRequest

DECAY = 0.97  # of a step's weight with each step of its kind after it: about the last thirty count
# Steps that are all alike leave open what took their time. The ridge gives it to the column that is largest in these
# units: to the prompt if that is long, to the sequences only if there are very many, else to what is fixed.
PROMPT_UNIT = 128  # tokens
SEQUENCE_UNIT = 256
ATTENDED_UNIT = 16384 * PROMPT_UNIT
RIDGE = 1e-5  # of the fixed column's weight
NUM_TERMS = 4  # of a step's time: fixed, each decoding sequence, each prompt token, each token that those look at


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computed."""

    num_sequences: int  # that decoded one token
    num_prompt_tokens: int  # of prompts, and of what is computed anew after a preemption
    num_attended: int = 0  # tokens that each of those looks at, itself among them, all added up

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRequest]) -> "StepWork":
        """What is scheduled; a last prompt token alone costs what a decoded one does."""
        prompts = [item for item in scheduled if item.num_new_tokens > 1]
        return cls(
            len(scheduled) - len(prompts),
            sum(item.num_new_tokens for item in prompts),
            sum(_num_attended(item.start, item.num_new_tokens) for item in prompts),
        )


@dataclass(frozen=True, slots=True)
class StepRates:
    """The terms of a step's time; 0: not known yet."""

    prefill_tokens_per_s: float = 0.0  # beside the step's fixed time, as deep in their prompts as tokens were lately
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
    """Fits the time of recent steps: fixed, plus so much a sequence, a prompt token, and a token that this looks at.

    Without the last, late chunks of long prompts, which take longer though they have no more tokens, would tell that
    tokens cost nothing, or less.

    Errors are relative to the step's time, so that a rare step that was held up counts little. Steps with prompt tokens
    and steps without are remembered apart, so that a long spell of one kind does not make the other forgotten.
    """

    def __init__(self) -> None:
        self._decodes = _Sums()
        self._prefills = _Sums()
        self._most_prompt_tokens = 0  # of a step so far
        self._num_prompt_tokens = 0.0  # of late, as decayed as the sums
        self._num_attended = 0.0

    def add(self, work: StepWork, step_s: float) -> None:
        """A step took so many seconds."""
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
        fixed_s, sequences_s, prompt_s, attended_s = _fit(products, targets)
        sequence_s = sequences_s / SEQUENCE_UNIT
        return StepRates(
            prefill_tokens_per_s=self._prompt_rate(prompt_s / PROMPT_UNIT, attended_s / ATTENDED_UNIT),
            decode_step_s=fixed_s + sequence_s,
            decode_sequence_s=sequence_s,
        )

    def _prompt_rate(self, token_s: float, attended_s: float) -> float:
        """Of tokens that each look at as many as they did lately."""
        if self._most_prompt_tokens < PROMPT_UNIT:
            return 0.0  # a few tokens say nothing of many
        prompts_s = self._num_prompt_tokens * token_s + self._num_attended * attended_s
        return self._num_prompt_tokens / prompts_s if prompts_s else 0.0


def _num_attended(num_computed: int, num_new: int) -> int:
    """What the tokens of a chunk look at, all added up: all before, and themselves."""
    return num_new * num_computed + num_new * (num_new + 1) // 2


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
