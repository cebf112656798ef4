"""Manually stepped engine."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Schedule
from benchmarks.gpu.stage import Setting

MANY = 1 << 20  # steps


@dataclass(slots=True)
class Answer:
    """A request's tokens so far, and the top logprobs at each position, if requested."""

    token_ids: list[int] = field(default_factory=list)
    top: list[dict[int, float]] = field(default_factory=list)


def start_engine(model: Path, setting: Setting, **options: Any) -> Engine:
    """Start an engine on the setting's device, by default with short contexts and few CUDA graphs."""
    options = {"max_model_len": 512, "max_num_seqs": 32, "dtype": setting.dtype_name, **options}
    return Engine(EngineConfig(model=str(model), device=str(setting.device), **options))


def greedy(num_tokens: int, logprobs: int | None = None, prompt_logprobs: int | None = None) -> SamplingParams:
    """Return greedy sampling of exactly `num_tokens`, ignoring end-of-sequence tokens."""
    return SamplingParams(
        temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=logprobs, prompt_logprobs=prompt_logprobs
    )


def request(name: str, prompt: Sequence[int], sampling: SamplingParams, **options: Any) -> Request:
    """Return a request that this engine prefills."""
    return Request(RequestId(name), list(prompt), len(prompt), sampling, **options)


def random_prompts(lens: Sequence[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Return random prompts without shared prefixes."""
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lens]


class EngineSession:
    """Stepper of an engine that collects its outputs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: dict[str, Answer] = {}

    def add(self, name: str, prompt: Sequence[int], sampling: SamplingParams, **options: Any) -> Request:
        """Queue a request, and return it."""
        added = request(name, prompt, sampling, **options)
        self.engine.add(added)
        return added

    def step(self) -> Schedule:
        """Run one step until its tokens are on the host, and return its schedule."""
        schedule = self.engine.schedule()
        if schedule.requests:
            self._gather(self.engine.run(schedule))
        return schedule

    def run_on(self, num_steps: int) -> None:
        """Run up to `num_steps` steps, each launched ahead of the previous one's end if possible."""
        engine, step = self.engine, None
        for left in reversed(range(num_steps)):
            if step is None:
                if not engine.has_work or not (requests := engine.schedule().requests):
                    return
                step = engine.launch(requests)
                assert step is not None, "a step did not fit into memory"
            following = None
            if left and engine.looks_ahead and (scheduled := engine.schedule_ahead(step)):
                following = engine.launch(scheduled, previous=step)
            self._gather(engine.collect(step))
            step = following

    def finish(self) -> dict[str, Answer]:
        """Step until all requests have finished."""
        while self.engine.has_work:
            self.run_on(MANY)
        self.engine.check_integrity()
        return self.answers

    def generate(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams) -> list[Answer]:
        """Generate for all prompts concurrently; return the answers in order."""
        for index, prompt in enumerate(prompts):
            self.add(str(index), prompt, sampling)
        answers = self.finish()
        return [answers[str(index)] for index in range(len(prompts))]

    def _gather(self, output: StepOutput) -> None:
        for each in output.outputs:
            for sampled in each.all_sampled:
                answer = self.answers.setdefault(each.request_id, Answer())
                answer.token_ids.append(sampled.token_id)
                if sampled.logprobs is not None:
                    top = (sampled.logprobs.chosen, *sampled.logprobs.top)
                    answer.top.append({candidate.token_id: candidate.logprob for candidate in top})
