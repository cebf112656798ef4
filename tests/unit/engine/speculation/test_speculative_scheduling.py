"""Drafts in random workloads, on a model that detects every wrong block."""

import random

import pytest

from baton.engine.config import EngineConfig
from baton.engine.request import FinishReason, FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.speculation import ngram
from baton.engine.speculation.base import Offer
from baton.engine.speculation.lookup import LookupDrafter
from baton.engine.speculation.ngram import NGramLookup
from tests.unit.engine.fake_model import VOCAB, reference
from tests.unit.engine.scheduler_rig import BLOCK_SIZE, Rig


class RandomDrafter:
    """Proposes the right tokens, up to a random place."""

    def __init__(self, seed: int, right: float = 0.8, least: int = 0) -> None:
        self._rng = random.Random(seed)
        self._right = right
        self.least, self.most = least, 100

    def begin_step(self) -> None:
        """Do nothing."""

    def propose(self, request: Request, limit: int) -> list[int]:
        """Propose a random number of tokens."""
        count = self._rng.randint(min(self.least, limit), min(limit, self.most))
        tokens = reference(request.token_ids, count)
        return [each if self._rng.random() < self._right else self._rng.randrange(VOCAB) for each in tokens]


@pytest.mark.parametrize("max_forced", [0, 9])
def test_random_workloads_produce_the_reference_tokens(max_forced: int) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        rig = Rig(num_blocks=rng.choice([26, 30, 60]), max_forced=max_forced, drafter=RandomDrafter(seed))
        prompts = [[rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))] for _ in range(4)]
        requests: dict[str, tuple[list[int], int]] = {}
        aborted: set[str] = set()
        for number in range(60):
            base = rng.choice(prompts)
            prompt = base[: rng.randint(1, len(base))] + [rng.randrange(VOCAB) for _ in range(rng.randint(0, 5))]
            name = f"{number}"
            requests[name] = (prompt, rng.randint(1, 30))
            rig.add(name, prompt, requests[name][1], priority=rng.choice([0, 0, 1]), receives_kv=rng.random() < 0.3)
            for _ in range(rng.randint(0, 3)):
                rig.step()
            for request in list(rig.receiving):
                if rng.random() < 0.5:
                    rig.end_receive(request, request.num_tokens, with_token=rng.random() < 0.8)
            if rng.random() < 0.15 and rig.scheduler.abort(RequestId(victim := f"{rng.randint(0, number)}")):
                aborted.add(victim)
            rig.scheduler.check_integrity()
        rig.run_to_end()
        for name, (prompt, max_tokens) in requests.items():
            expected = reference(prompt, max_tokens)
            got = rig.outputs[RequestId(name)]
            assert got == (expected[: len(got)] if name in aborted else expected), f"seed {seed}, request {name}"
        assert rig.speculator is not None
        assert 0 < rig.speculator.counters.num_accepted_tokens < rig.speculator.counters.num_draft_tokens
        assert rig.scheduler.blocks.cache.pool.num_free == rig.num_blocks - 1


def test_right_drafts_save_steps() -> None:
    rig = Rig(drafter=RandomDrafter(0, right=1.0))
    rig.add("fast", [1, 2, 3], 60)
    num_steps = 0
    while rig.scheduler.num_unfinished:
        rig.step()
        num_steps += 1
    assert rig.outputs[RequestId("fast")] == reference([1, 2, 3], 60)
    assert num_steps < 30
    assert rig.ends[RequestId("fast")] is FinishReason.LENGTH


def test_drafts_preempt_no_request_and_leave_no_blocks_behind() -> None:
    """With drafts or without, as many requests are preempted as the tokens need."""
    counts = []
    for drafter in (None, RandomDrafter(0, right=0.0)):
        rig = Rig(num_blocks=16, drafter=drafter)
        for number in range(6):
            rig.add(f"{number}", [number] * 7, 40)
        while rig.scheduler.num_unfinished:
            rig.step()
            for request in rig.scheduler.running:
                assert len(request.block_table) <= rig.scheduler.blocks.num_blocks_for(request.num_tokens)
        assert all(rig.outputs[RequestId(f"{n}")] == reference([n] * 7, 40) for n in range(6))
        counts.append(rig.scheduler.num_preemptions)
    assert counts[0] == counts[1] > 0


def test_drafts_take_what_the_budget_leaves() -> None:
    config = EngineConfig(model="", block_size=BLOCK_SIZE, max_num_batched_tokens=9, max_num_seqs=8)
    rig = Rig(config=config, drafter=RandomDrafter(1, right=1.0))
    rig.add("a", [1, 2], 60)
    rig.step()
    rig.add("long", [3] * 40, 1)
    for _ in range(4):
        before = len(rig.outputs[RequestId("a")])
        assert rig.step() == 9
        assert len(rig.outputs[RequestId("a")]) == before + 1


def test_a_request_whose_blocks_a_peer_reads_has_no_drafts() -> None:
    rig = Rig(drafter=RandomDrafter(0))
    rig.add("read", [1] * 10, 20, keep_blocks=True)
    rig.run_to_end()
    assert rig.outputs[RequestId("read")] == reference([1] * 10, 20)
    assert rig.speculator is not None
    assert rig.speculator.counters.num_drafts == 0


def test_an_end_token_is_never_drafted() -> None:
    token = reference([1, 2, 3], 9)[6]
    for min_tokens in (0, 9):
        rig = Rig(drafter=RandomDrafter(3, right=1.0))
        rig.outputs[RequestId("stop")] = []
        sampling = SamplingParams(max_tokens=20, min_tokens=min_tokens, stop_token_ids=frozenset([token]))
        rig.scheduler.add(Request(RequestId("stop"), [1, 2, 3], 3, sampling))
        while rig.scheduler.num_unfinished:
            schedule = rig.scheduler.schedule()
            assert all(token not in item.drafts for item in schedule.requests)
            for output in rig.scheduler.update(schedule.requests, rig.model.run(schedule.requests)):
                rig.take(output)
        plain = Rig()
        plain.outputs[RequestId("stop")] = []
        plain.scheduler.add(Request(RequestId("stop"), [1, 2, 3], 3, sampling))
        plain.run_to_end()
        assert rig.outputs == plain.outputs
        assert rig.ends == plain.ends


def test_tokens_behind_an_end_are_not_offered() -> None:
    """Otherwise they would count in the price, and take a step's tokens from the drafts of others."""

    class Fixed:
        def begin_step(self) -> None:
            """Do nothing."""

        def propose(self, request: Request, limit: int) -> list[int]:
            """Propose the same tokens always."""
            return [5, 6, 7, 8][:limit]

    drafter = LookupDrafter(Fixed(), FinishRule(frozenset({9}), max_model_len=100))
    for stop, expected in ((7, Offer(2, 5)), (5, None), (4, Offer(4, 5))):
        sampling = SamplingParams(stop_token_ids=frozenset([stop]))
        request = Request(RequestId("a"), [1, 2], 2, sampling)
        assert drafter.offer(request, 4) == expected


def test_only_accepted_tokens_are_cached() -> None:
    rig = Rig(drafter=RandomDrafter(2, right=0.5))
    rig.add("first", list(range(10)), 40)
    rig.run_to_end()
    output = rig.outputs[RequestId("first")]
    second = rig.add("second", [*range(10), *output], 10)
    rig.run_to_end()
    assert second.num_cached_tokens >= 44
    assert rig.outputs[RequestId("second")] == reference([*range(10), *output], 10)


def test_no_step_is_launched_ahead_of_drafts() -> None:
    rig = Rig(drafter=(drafter := RandomDrafter(0, right=1.0)))
    rig.add("a", [1, 2, 3], 60)
    rig.step()
    drafter.most = 0
    schedule = rig.scheduler.schedule()
    assert not schedule.requests[0].drafts
    assert rig.scheduler.schedule_ahead(schedule.requests)
    drafter.least, drafter.most = 1, 100
    assert not rig.scheduler.schedule_ahead(schedule.requests)


def test_every_step_indexes_more_of_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "TOKENS_PER_STEP", 2)
    rig = Rig(drafter=(drafter := NGramLookup(1, 3)))
    request = rig.add("a", [1, 2] * 10, 60)
    for _ in range(15):
        rig.step()
    assert 15 < drafter._indexes[request].next_end < 32
