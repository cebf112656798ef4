"""Throughput with drafts and without, in virtual time: the real scheduler and price, and a model of given cost."""

import random
from dataclasses import dataclass, field

import pytest

from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step_clock import StepClock
from baton.engine.scheduling.step_rates import StepWork
from baton.engine.speculation.lookup import LookupDrafter
from baton.engine.speculation.price import StepCost
from baton.engine.speculation.speculator import Speculator
from tests.unit.engine.fake_model import VOCAB, FakeModel, digest, next_token

MAX_DRAFT = 5
OFTEN = 0.8  # of the steps of a request have a proposal
NUM_TOKENS = 120


@dataclass
class GuessingDrafter:
    """Proposes tokens each of which is right with a given probability."""

    right: float
    rng: random.Random
    known: dict[str, tuple[int, int]] = field(default_factory=dict)  # tokens and their digest

    def begin_step(self) -> None:
        """Do nothing."""

    def propose(self, request: Request, limit: int) -> list[int]:
        """Propose as many tokens as possible, or none."""
        if self.rng.random() > OFTEN:
            return []
        count, state = self.known.get(request.request_id, (0, 0))
        for token_id in request.token_ids[count:]:
            state = digest(state, token_id)
        self.known[request.request_id] = request.num_tokens, state
        proposed = []
        for _ in range(limit):
            is_right = self.rng.random() < self.right
            proposed.append(next_token(state) if is_right else (next_token(state) + 1) % VOCAB)
            state = digest(state, proposed[-1])
        return proposed


def rate(batch: int, drafter: GuessingDrafter | None, cost: StepCost, sequence_s: float) -> float:
    """Tokens per second of three batches; times of steps vary by some percent. plain_s is without the sequences."""
    num_blocks, rule, clock, noise = 20 * batch + 50, FinishRule(frozenset(), 10_000), StepClock(), random.Random(1)
    blocks = BlockManager(num_blocks, 16, enable_prefix_caching=False)
    speculator = None
    if drafter is not None:
        speculator = Speculator(MAX_DRAFT, LookupDrafter(drafter, rule), blocks, rule, clock.rates_for_drafts)
    config = EngineConfig(model="", max_num_batched_tokens=256, max_num_seqs=64)
    scheduler, model = Scheduler(config, blocks, rule, speculator=speculator), FakeModel(num_blocks, 16)
    now_s, num_tokens = 0.0, 0
    for number in range(3 * batch):
        sampling = SamplingParams(max_tokens=NUM_TOKENS)
        scheduler.add(Request(RequestId(str(number)), [number % VOCAB] * 20, 20, sampling))
        while scheduler.num_unfinished and number % batch == batch - 1:
            scheduled = scheduler.schedule().requests
            work, num_drafted = StepWork.of(scheduled), sum(len(item.drafts) for item in scheduled)
            step_s = cost.plain_s + sequence_s * len(scheduled) + 0.01 * work.num_prompt_tokens
            step_s += cost.drafting_s * (num_drafted > 0) + cost.draft_s * num_drafted
            started_s, now_s = now_s, now_s + step_s * noise.uniform(0.95, 1.05)
            clock.add(scheduled, work, started_s, now_s, speculator)
            clock.begin_next(now_s)
            outputs = scheduler.update(scheduled, model.run(scheduled))
            num_tokens += sum(len(output.token_ids) for output in outputs)
    assert num_tokens == 3 * batch * NUM_TOKENS
    return num_tokens / now_s


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("right", [0.95, 0.5, 0.05])
@pytest.mark.parametrize(
    "cost",
    [StepCost(1.0, 0.0, 0.02), StepCost(1.0, 0.3, 0.02), StepCost(1.0, 0.0, 0.3), StepCost(1.0, 1.0, 0.2)],
    ids=["cheap", "cheap but the first", "expensive", "very expensive"],
)
def test_drafts_pay_or_there_are_none(cost: StepCost, right: float, batch: int) -> None:
    plain = rate(batch, None, cost, sequence_s=0.05)
    drafted = rate(batch, GuessingDrafter(right, random.Random(2)), cost, sequence_s=0.05)
    assert drafted > 0.94 * plain
    if cost.draft_s < 0.1 and right > 0.9:
        assert drafted > 1.8 * plain
