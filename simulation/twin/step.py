"""What a replica does until something changes: one step, or many that are alike."""

from dataclasses import dataclass, field
from math import ceil

from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.twin.batch import Batch
from baton.simulation.twin.sequence import Sequence

SAME_MOMENT = 1e-9  # of a step: what comes so soon after its end comes with its end


@dataclass(frozen=True, slots=True)
class Chunk:
    """So many tokens of a prompt, in one step."""

    sequence: Sequence
    num_tokens: int

    @property
    def num_attended(self) -> int:
        """Tokens that each of them looks at, itself among them, all added up; before they are computed."""
        return self.num_tokens * self.sequence.num_computed + self.num_tokens * (self.num_tokens + 1) // 2


@dataclass(slots=True, eq=False)
class Step:
    """Steps of equal length, one behind the other."""

    begins_s: float
    step_s: float  # of one
    num_steps: int
    num_decoding: int = 0  # sequences, in each
    chunks: list[Chunk] = field(default_factory=list)  # of the only one

    @classmethod
    def pending(cls) -> "Step":
        """One is about to begin."""
        return cls(0.0, 0.0, 0)

    @classmethod
    def of(cls, spec: WorkerSpec, chunks: list[Chunk], num_decoding: int, batch: Batch, now_s: float) -> "Step":
        """What is scheduled now: one step if it has a prompt's chunk, else as many as are alike."""
        prompts = [chunk for chunk in chunks if chunk.num_tokens > 1]  # one token costs what a decoded one does
        num_prompt_tokens = sum(chunk.num_tokens for chunk in prompts)
        num_attended = sum(chunk.num_attended for chunk in prompts)
        step_s = spec.step_time_s(num_decoding + len(chunks) - len(prompts), num_prompt_tokens, num_attended)
        return cls(now_s, step_s, 1 if chunks else batch.ticks_to_next, num_decoding, chunks)

    @property
    def seconds(self) -> float:
        """Of all of them."""
        return self.num_steps * self.step_s

    @property
    def ends_s(self) -> float:
        """When the last of them ends."""
        return self.begins_s + self.seconds

    def cut_short(self, now_s: float) -> bool:
        """Ends with the step under way; False if that is the last anyway."""
        if self.num_steps <= 1 or self.step_s <= 0:
            return False
        num_begun = max(1, ceil((now_s - self.begins_s) / self.step_s - SAME_MOMENT))
        if num_begun >= self.num_steps:
            return False
        self.num_steps = num_begun
        return True
