"""Throughput with a draft model and without, in virtual time: the real scheduler and price, and given times."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from baton.engine.config import EngineConfig
from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.scheduler import Scheduler
from baton.engine.scheduling.step_clock import StepClock
from baton.engine.scheduling.step_rates import StepWork
from baton.engine.speculation.acceptance import Acceptance
from baton.engine.speculation.base import Drafted, Offer
from baton.engine.speculation.pass_times import PassTimes
from baton.engine.speculation.speculator import Speculator
from tests.unit.engine.fake_model import VOCAB, FakeModel, digest, next_token

MAX_DRAFT = 5
STEP_S, SEQUENCE_S, VERIFIED_S, PROMPT_S = 1.0, 0.05, 0.05, 0.01  # of a step, each sequence, drafted and prompt token
READY_TOKENS = 16


@dataclass
class VirtualDraftModel:
    """Tokens each of which is right with a given probability, drafted in virtual time."""

    right: float
    pass_time_s: float
    expects_end: bool = False  # each draft is empty, since its first token would end the request
    rng: random.Random = field(default_factory=lambda: random.Random(2))
    prepared: dict[str, int] = field(default_factory=dict)  # tokens with KV
    known: dict[str, tuple[int, int]] = field(default_factory=dict)  # tokens and their digest
    elapsed_s: float = 0.0  # since it was last read
    num_offers: int = 0
    times: PassTimes = field(default_factory=PassTimes)

    def begin_step(self) -> None:
        """Let the times age."""
        self.times.begin_step()

    def offer(self, request: Request, limit: int) -> Offer | None:
        """Offer tokens; those of new prompts must be prepared."""
        self.num_offers += 1
        missing = request.num_tokens - self.prepared.get(request.request_id, 0)
        return Offer(limit, None, missing <= READY_TOKENS, missing * self.token_s)

    @property
    def token_s(self) -> float:
        """Time of a prompt's token."""
        return PROMPT_S * self.pass_time_s / STEP_S

    def pass_s(self, num_requests: int) -> float:
        """Return the measured time of a pass."""
        return self.times.pass_s(num_requests)

    def draft(self, wanted: Mapping[Request, int], preparation_s: float) -> Drafted:
        """Draft tokens for those that are prepared, and prepare others."""
        drafts, deepest, num_left, num_prepared = {}, 0, min(256, int(preparation_s / self.token_s)), 0
        for request, count in wanted.items():
            missing = request.num_tokens - self.prepared.get(request.request_id, 0)
            if missing > READY_TOKENS:
                taken = min(missing, num_left)
                self.prepared[request.request_id] = request.num_tokens - missing + taken
                num_left, num_prepared = num_left - taken, num_prepared + taken
            else:
                drafts[request] = [] if self.expects_end else self._tokens(request, count)
                self.prepared[request.request_id] = request.num_tokens
                deepest = max(deepest, count)
        for _ in range(deepest):
            self.times.add(len(drafts), self.pass_time_s)
        drafted = Drafted(drafts, deepest * self.pass_time_s, num_prepared * self.token_s)
        self.elapsed_s += drafted.drafting_s + drafted.preparation_s
        return drafted

    def _tokens(self, request: Request, limit: int) -> list[int]:
        count, state = self.known.get(request.request_id, (0, 0))
        for token_id in request.token_ids[count:]:
            state = digest(state, token_id)
        self.known[request.request_id] = request.num_tokens, state
        tokens: list[int] = []
        for _ in range(limit):
            is_right = self.rng.random() < self.right
            tokens.append(next_token(state) if is_right else (next_token(state) + 1) % VOCAB)
            state = digest(state, tokens[-1])
        return tokens


def rate(batch: int, drafter: VirtualDraftModel | None, num_prompt_tokens: int, num_tokens: int) -> float:
    """Tokens per second of many requests, of which `batch` run at once; times of steps vary by some percent."""
    count, noise = max(4 * batch, 12), random.Random(1)
    num_blocks = (batch + 2) * (num_prompt_tokens + num_tokens + 32) // 16
    rule, clock = FinishRule(frozenset(), 10_000), StepClock()
    blocks = BlockManager(num_blocks, 16, enable_prefix_caching=False)
    speculator = None
    if drafter is not None:
        all_drafts = Acceptance.of_all()
        speculator = Speculator(MAX_DRAFT, drafter, blocks, rule, clock.rates_for_drafts, acceptance=all_drafts)
    config = EngineConfig(model="", max_num_batched_tokens=256, max_num_seqs=batch)
    scheduler, model = Scheduler(config, blocks, rule, speculator=speculator), FakeModel(num_blocks, 16)
    for number in range(count):
        prompt, sampling = [number % VOCAB] * num_prompt_tokens, SamplingParams(max_tokens=num_tokens)
        scheduler.add(Request(RequestId(str(number)), prompt, len(prompt), sampling))
    now_s = 0.0
    while scheduler.num_unfinished:
        scheduled = scheduler.schedule().requests
        if drafter is not None:
            now_s, drafter.elapsed_s = now_s + drafter.elapsed_s, 0.0
        work, num_drafted = StepWork.of(scheduled), sum(len(item.drafts) for item in scheduled)
        step_s = STEP_S + SEQUENCE_S * len(scheduled) + PROMPT_S * work.num_prompt_tokens + VERIFIED_S * num_drafted
        started_s, now_s = now_s, now_s + step_s * noise.uniform(0.95, 1.05)
        scheduler.update(scheduled, model.run(scheduled))
        clock.add(scheduled, work, started_s, now_s, speculator)
        clock.begin_next(now_s)
    return count * num_tokens / now_s


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("right", [0.9, 0.5, 0.0])
@pytest.mark.parametrize("pass_s", [0.1, 0.5])
def test_a_draft_model_pays_or_is_not_used(pass_s: float, right: float, batch: int) -> None:
    plain = rate(batch, None, 60, 120)
    drafted = rate(batch, VirtualDraftModel(right, pass_s), 60, 120)
    assert drafted > 0.96 * plain
    if right > 0.8 and pass_s < 0.2:
        assert drafted > (2 if batch == 1 else 1.3) * plain


@pytest.mark.parametrize(("right", "is_rare"), [(0.0, True), (0.9, False)])
def test_offers_that_do_not_pay_become_rare(right: float, is_rare: bool) -> None:
    """Even those that are left out take time, and bind a head to hidden states."""
    drafter = VirtualDraftModel(right, 0.1)
    rate(1, drafter, 10, 400)
    num_steps = 12 * 400
    assert (drafter.num_offers < 0.15 * num_steps) if is_rare else (drafter.num_offers > 0.2 * num_steps)


@pytest.mark.parametrize("batch", [1, 8])
def test_drafts_that_wrongly_expect_an_end_stop(batch: int) -> None:
    """No token of them is verified, but they take a pass of the draft model."""
    plain = rate(batch, None, 60, 120)
    assert rate(batch, VirtualDraftModel(0.9, 0.25, expects_end=True), 60, 120) > 0.96 * plain


@pytest.mark.parametrize("right", [0.9, 0.0])
def test_prompts_that_are_long_for_their_outputs_are_not_prepared(right: float) -> None:
    """A prompt's preparation takes longer than the drafts for its few tokens could save."""
    plain = rate(4, None, 2000, 8)
    assert rate(4, VirtualDraftModel(right, 0.25), 2000, 8) > 0.97 * plain
