"""Equal steps as one event, compared with the same steps one by one: times, counters and rates."""

import random
from dataclasses import dataclass, field, replace

import pytest

from baton.engine.outputs import EngineStats, StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import Tokens
from baton.simulation.twin.clock import Clock
from tests.marks import each_value

ROOMY = WorkerSpec(block_size=16, num_blocks=2000, max_num_seqs=8, max_num_batched_tokens=256, attended_s=1e-7)
SHORT = replace(ROOMY, num_blocks=60)
SAME_S = 1e-9


@dataclass
class Run:
    """An engine under a load, and the end of each request."""

    core: EngineCore
    clock: Clock
    ended_s: dict[RequestId, float] = field(default_factory=dict)
    num_generated: list[int] = field(default_factory=list)  # arrivals at a few moments

    def note(self, step: StepOutput) -> None:
        """Record the ends in a step's output."""
        self.core.scheduler.check_integrity()
        for output in step.outputs:
            if output.finish_reason is not None:
                self.ended_s[output.request_id] = self.clock.now_s


def run(spec: WorkerSpec, seed: int, *, is_single: bool) -> Run:
    """Run random requests, of which some are aborted."""
    draw, clock = random.Random(seed), Clock()
    done = Run(EngineCore(spec, clock, Tokens(spec) if is_single else None), clock)
    done.core.listen(done.note)
    prefix = [1] * 100
    for number in range(2, 60):
        request = Request(
            RequestId(str(number)),
            token_ids=prefix[: draw.randrange(100)] + [number] * draw.randrange(1, 200),
            num_prompt_tokens=0,
            sampling=SamplingParams(max_tokens=draw.randrange(1, 300)),
        )
        request.num_prompt_tokens = request.num_tokens
        due_s = draw.uniform(0, 10)
        clock.at(due_s, done.core.add, request)
        if draw.random() < 0.2:
            clock.at(due_s + draw.uniform(0, 2), done.core.abort, request.request_id)
    for place in range(20):
        clock.at(0.6 * place + 1 / 3, lambda: done.num_generated.append(done.core.num_generated_tokens))
    clock.run()
    return done


def without_times(stats: EngineStats) -> EngineStats:
    """Return the stats without measured times, which differ in the last digits or are not learnt."""
    return replace(stats, step_s=0.0, prefill_tokens_per_s=0.0, decode_step_s=0.0, decode_sequence_s=0.0)


@each_value
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("spec", [ROOMY, SHORT], ids=["roomy", "short"])
def test_merged_steps_equal_single_steps(spec: WorkerSpec, seed: int) -> None:
    """With admission, chunks, cached prefixes, aborts, and, if memory is short, eviction and preemption."""
    single, merged = (run(spec, seed, is_single=is_single) for is_single in (True, False))
    assert merged.ended_s == pytest.approx(single.ended_s, abs=SAME_S)
    assert merged.num_generated == single.num_generated
    assert without_times(merged.core.load()) == without_times(single.core.load())
    one, other = single.core.counters, merged.core.counters
    assert (other.steps, other.generated_tokens) == (one.steps, one.generated_tokens)
    assert other.prefilled_tokens == one.prefilled_tokens
    assert (other.busy_s, other.recent_step_s) == pytest.approx((one.busy_s, one.recent_step_s))
    learnt, known = single.core.step_times.rates(), merged.core.step_times.rates()
    assert known.prefill_tokens_per_s == pytest.approx(learnt.prefill_tokens_per_s, rel=0.1)
    assert known.decode_step_s == pytest.approx(learnt.decode_step_s, rel=0.1)
    assert (single.core.load().num_preemptions > 0) is (spec is SHORT)
    assert merged.clock.num_events < single.clock.num_events / 1.2
