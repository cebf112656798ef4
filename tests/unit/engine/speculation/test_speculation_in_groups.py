"""Drafts in tensor-parallel and expert-parallel groups: the ranks compute them like any tokens."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from baton.engine.kv.block_manager import BlockManager
from baton.engine.request import FinishRule, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.scheduling.step_rates import StepRates
from baton.engine.speculation.acceptance import Acceptance
from baton.engine.speculation.lookup import LookupDrafter
from baton.engine.speculation.price import StepCost
from baton.engine.speculation.speculator import Speculator
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case, slow_except
from tests.unit.engine.group_rig import Ranks
from tests.unit.engine.speculation.free_drafts import FreeDrafts
from tests.unit.engine.speculation.speculation_rig import (
    NGRAM,
    Outcome,
    assert_equal,
    copies,
    draft_always,
    engine_of,
    run,
)
from tests.unit.engine.tensor_rig import TensorRig


class TakingTime(FreeDrafts):
    """Drafts of which three take as long as a step."""

    def of(self, plain_s: float, sequence_s: float) -> StepCost:
        return StepCost(1.0, 0.0, 0.33)


class Recorder:
    """A drafter that notes a number at each proposal."""

    def __init__(self, number: Callable[[], int], token_ids: Sequence[int] = ()) -> None:
        self._number = number
        self._token_ids = token_ids
        self.seen: set[int] = set()

    def begin_step(self) -> None:
        """Do nothing."""

    def propose(self, request: Request, limit: int) -> list[int]:
        """Propose the same tokens."""
        self.seen.add(self._number())
        return list(self._token_ids[:limit])


def make_requests(seed: int, count: int) -> list[Request]:
    draw = random.Random(seed)
    requests = []
    for number in range(count):
        prompt = draw.choices(range(3, VOCAB_SIZE), k=draw.choice((1, 3, 17, 40)))
        sampling = SamplingParams(temperature=number % 2, seed=number, max_tokens=24, ignore_eos=True, logprobs=0)
        requests.append(Request(RequestId(f"{seed}-{number}"), prompt, len(prompt), sampling))
    return requests


def tokens(expected: dict[str, Outcome]) -> dict[str, list[int]]:
    return {name: outcome.token_ids for name, outcome in expected.items()}


@pytest.mark.parametrize(
    "architecture", slow_except(("llama3", "mamba2", "qwen3-next", "falcon-h1"), ("llama3", "mamba2"))
)
def test_tensor_parallel_ranks(architecture: str, tmp_path: Path) -> None:
    """All of them advance recurrent states by the drafts that rank 0 accepts."""
    model = make_checkpoint(architecture, tmp_path / "model")
    expected = run(engine_of(model, False), make_requests(1, 6))
    requests = copies(make_requests(1, 6))
    rig = TensorRig(model, 2, speculative_config=NGRAM, block_size=4, max_num_batched_tokens=32, max_num_seqs=8)
    try:
        rig.call(lambda engine: draft_always(engine, tokens(expected)))
        assert_equal(rig.call(lambda engine: run(engine, requests)), expected)
        assert rig.engine.stats().speculation.num_accepted_tokens > 30
    finally:
        rig.close()


@pytest.mark.parametrize("architecture", ["mixtral", slow_case("qwen3-next")])
def test_expert_parallel_ranks(architecture: str, tmp_path: Path) -> None:
    """Each rank has drafts of its own."""
    model = make_checkpoint(architecture, tmp_path / "model")
    names = ["rank-0", "rank-1"]
    expected = {name: tokens(run(engine_of(model, False), make_requests(place, 4))) for place, name in enumerate(names)}
    group = Ranks(
        model, names, speculative_config=NGRAM, dtype="float32", block_size=4, max_num_batched_tokens=32, max_num_seqs=8
    )
    try:
        for name in names:
            group[name].call(lambda engine, known=expected[name]: draft_always(engine, known)).result()
        for place, name in enumerate(names):
            group[name].add(*make_requests(place, 4))
        outputs = group.wait_for_all()
        for name in names:
            found = {each: [token.token_id for token in outputs[each]] for each in expected[name]}
            assert found == expected[name]
            assert group[name].engine.stats().speculation.num_accepted_tokens > 20
    finally:
        group.close()


def test_ranks_have_no_drafts_that_cost_the_others_more() -> None:
    """A rank of one request could have four times its tokens, in twice the time of a step."""
    drafts = {}
    for num_elsewhere in (0, 4):
        rule, blocks = FinishRule(frozenset(), max_model_len=100), BlockManager(20, 4, enable_prefix_caching=False)
        speculator = Speculator(
            3,
            LookupDrafter(Recorder(lambda: 0, [5, 5, 5]), rule),
            blocks,
            rule,
            lambda: StepRates(decode_step_s=1.0),
            num_elsewhere=lambda num=num_elsewhere: num,
        )
        speculator._costs = TakingTime()
        request = Request(RequestId("a"), [1, 2, 3], 3, SamplingParams(max_tokens=50))
        assert blocks.take(request, reserve=0, reads_cache=False)
        request.num_computed_tokens = 2
        speculator._acceptances[request] = Acceptance(_tested=1.0, _accepted=1.0)
        items = [ScheduledRequest.of(request, 1)]
        speculator.add_drafts(items, most=9)
        drafts[num_elsewhere] = len(items[0].drafts)
    assert drafts == {0: 3, 4: 0}


def test_ranks_know_how_many_tokens_the_others_compute(tmp_path: Path) -> None:
    model = make_checkpoint("mixtral", tmp_path / "model")
    group = Ranks(model, ["rank-0", "rank-1"], speculative_config=NGRAM, dtype="float32", block_size=4)
    try:
        speculator = group["rank-0"].engine.speculator
        assert speculator is not None
        drafter = Recorder(speculator._num_elsewhere)
        speculator._drafter = LookupDrafter(drafter, group["rank-0"].engine.finish_rule)
        group["rank-0"].add(*make_requests(0, 1))
        group["rank-1"].add(*make_requests(1, 4))
        group.wait_for_all()
        assert 4 in drafter.seen
    finally:
        group.close()
