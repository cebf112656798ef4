"""Outputs of a real engine are the same with a draft head as without, however good it is."""

import random
from pathlib import Path

import pytest
import torch

from baton.engine.engine import Engine
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.layers.linear import Linear
from baton.engine.models.causal_lm import CausalLM
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Received
from baton.engine.speculation.heads import draft_head
from baton.engine.speculation.heads.draft_head import DraftHead
from baton.engine.speculation.price import StepCost
from tests.checkpoints import make_checkpoint
from tests.draft_heads import random_head, repeating_head
from tests.marks import slow_except
from tests.unit.engine.grammar_rig import byte_tokenizer
from tests.unit.engine.group_rig import Ranks
from tests.unit.engine.speculation.draft_rig import acceptance, draft_freely, drafter_of, run_and_free
from tests.unit.engine.speculation.free_drafts import FreeDrafts
from tests.unit.engine.speculation.heads.head_rig import advance, drafts_of, head_engine, option, quiet_engine
from tests.unit.engine.speculation.heads.test_head_model import request_of
from tests.unit.engine.speculation.speculation_rig import assert_equal, copies, engine_of, run
from tests.unit.engine.speculation.test_draft_models import LONGEST, requests_of
from tests.unit.engine.speculation.test_speculative_outputs import VOCAB
from tests.unit.engine.tensor_rig import TensorRig
from tests.unit.engine.test_async_scheduling import Clients


class Forbidding(FreeDrafts):
    """Times of steps in which no draft pays."""

    def of(self, plain_s: float, sequence_s: float) -> StepCost:
        return StepCost(1.0, 10.0, 10.0)


SCARCE = 350_000  # bytes of KV
KINDS = ("eagle3", "small eagle3", "eagle", "repeating")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3") / "model")


@pytest.fixture(scope="module")
def heads(model: Path) -> dict[str, Path]:
    """Heads by their kind; the first three are garbage."""
    made = {kind: model.parent / kind for kind in KINDS}
    random_head(model, made["eagle3"], "eagle3")
    random_head(model, made["small eagle3"], "eagle3", num_drafted=40)
    random_head(model, made["eagle"], "eagle")
    repeating_head(model, made["repeating"])
    return made


def method_of(kind: str) -> str:
    return "eagle3" if kind.endswith("eagle3") else "eagle"


@pytest.mark.parametrize("memory", slow_except([1 << 21, SCARCE], {SCARCE}), ids=["plenty", "scarce"])
@pytest.mark.parametrize("kind", slow_except(KINDS, {"small eagle3", "repeating"}))
def test_outputs_equal_those_without_drafts(model: Path, heads: dict[str, Path], kind: str, memory: int) -> None:
    """With penalties, logprobs, stop tokens, seeds, shared prefixes and preemptions."""
    requests = requests_of(3, 16)
    expected = run(engine_of(model, False, max_model_len=LONGEST), copies(requests))
    options = {"kv_cache_memory_bytes": memory, "max_model_len": LONGEST}
    engine = head_engine(model, method_of(kind), heads[kind], **options)
    assert_equal(run_and_free(engine, requests), expected)
    counters = engine.stats().speculation
    assert counters.num_draft_tokens > 50
    assert counters.drafting_s > 0
    assert (engine.scheduler.num_preemptions > 0) == (memory == SCARCE)
    assert (acceptance(engine) > 0.1) if kind == "repeating" else (acceptance(engine) < 0.3)


def test_drafts_are_right_where_the_model_repeats(model: Path, heads: dict[str, Path]) -> None:
    """The bias makes a token follow itself, and applies to the head's logits too."""
    sampling = SamplingParams(temperature=1.0, seed=3, logit_bias={7: 100.0}, max_tokens=40, ignore_eos=True)
    request = Request(RequestId("a"), [5, 6, 7], 3, sampling)
    expected = run(engine_of(model, False), copies([request]))
    engine = head_engine(model, "eagle3", heads["eagle3"])
    assert_equal(run_and_free(engine, [request]), expected)
    counters = engine.stats().speculation
    assert counters.num_accepted_tokens == counters.num_draft_tokens > 20


def test_a_handover_begins_the_context_of_the_head(model: Path, heads: dict[str, Path]) -> None:
    """Hidden states are not handed over: the first drafts follow the first step."""
    engine = quiet_engine(model, "eagle", heads["repeating"])
    request = request_of("a", 17)
    request.receives_kv = True
    engine.add(request)
    assert engine.schedule().receiving == [request]
    reference = engine_of(model, False)
    prompt = request_of("b", 17)
    reference.add(prompt)
    advance(reference, prompt, 18)
    engine.pool[request.block_table] = reference.pool[prompt.block_table]
    sampled = prompt.token_ids[-1]
    engine.end_receive(request.request_id, Received(16))
    advance(engine, request, 18)
    assert request.token_ids[-1] == sampled
    assert request.num_without_states == 16
    assert drafts_of(engine, request, 2) == [sampled] * 2
    twin = drafter_of(engine).twins.of(request)
    assert twin is not None
    assert (twin.first, twin.own.token_ids) == (17, [sampled])


def test_nothing_is_drafted_before_the_first_hidden_state(model: Path, heads: dict[str, Path]) -> None:
    engine = quiet_engine(model, "eagle", heads["repeating"])
    request = request_of("a", 9)
    request.num_without_states = request.num_computed_tokens = 8
    assert drafter_of(engine).offer(request, 4) is None


def test_chunks_are_waited_for(model: Path, heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a GPU's time for them would count as that of the next step."""
    waited: list[torch.device] = []
    monkeypatch.setattr(draft_head, "wait_for", waited.append)
    engine = quiet_engine(model, "eagle", heads["eagle"])
    request = request_of("a", 40)
    engine.add(request)
    advance(engine, request, 41)
    drafts_of(engine, request, 1)
    assert waited == [torch.device("cpu")] * len(waited) != []


def test_aborted_requests_leave_nothing(model: Path, heads: dict[str, Path]) -> None:
    draw, engine = random.Random(5), head_engine(model, "eagle3", heads["eagle3"])
    names = [str(number) for number in range(12)]
    for name in names:
        sampling = SamplingParams(temperature=1, seed=int(name), max_tokens=40, ignore_eos=True)
        prompt = draw.choices(VOCAB, k=draw.randrange(1, 50))
        engine.add(Request(RequestId(name), prompt, len(prompt), sampling))
        for _ in range(2):
            engine.run(engine.schedule())
            engine.check_integrity()
        engine.abort(RequestId(draw.choice(names)))
        engine.check_integrity()
    assert engine.stats().speculation.num_draft_tokens > 0
    for name in names:
        engine.abort(RequestId(name))
    run_and_free(engine, [])
    assert engine.blocks.num_free == engine.blocks.num_usable


@pytest.mark.slow
def test_grammars(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model", tokenizer=byte_tokenizer())
    grammars = (Grammar(GrammarKind.REGEX, "[a-c]+-[0-9]+"), None)
    requests = []
    for number in range(8):
        sampling = SamplingParams(temperature=number % 2, seed=number, max_tokens=30, grammar=grammars[number % 4 // 2])
        prompt = random.Random(number).choices(VOCAB, k=9)
        requests.append(Request(RequestId(str(number)), prompt, len(prompt), sampling))
    expected = run(engine_of(model, False), copies(requests))
    engine = head_engine(model, "eagle", repeating_head(model, tmp_path / "head"))
    assert_equal(run_and_free(engine, requests), expected)
    assert engine.stats().speculation.num_draft_tokens > 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["small eagle3", "repeating"])
def test_rank_0_of_a_tensor_parallel_group_has_the_head(model: Path, heads: dict[str, Path], kind: str) -> None:
    """It has the whole embedding and output layer once more, which the ranks divide otherwise."""
    requests = requests_of(4, 8)
    expected = run(engine_of(model, False, max_model_len=LONGEST), copies(requests))
    options = {"block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 8, "max_model_len": LONGEST}
    rig = TensorRig(model, 2, speculative_config=option(method_of(kind), heads[kind]), **options)
    try:
        rig.call(draft_freely)
        assert_equal(rig.call(lambda engine: run_and_free(engine, requests)), expected)
        assert rig.engine.stats().speculation.num_draft_tokens > 30
        assert rig.follower(1).pool.shape[0] == rig.engine.pool.shape[0]
    finally:
        rig.close()


@pytest.mark.slow
def test_expert_parallel_ranks_have_a_head_each(tmp_path: Path) -> None:
    model = make_checkpoint("mixtral", tmp_path / "model")
    head = random_head(model, tmp_path / "head", "eagle3")
    names = ["rank-0", "rank-1"]
    waves = {
        name: [
            Request(RequestId(name + each.request_id), each.token_ids, each.num_prompt_tokens, each.sampling)
            for each in requests_of(place, 4)
        ]
        for place, name in enumerate(names)
    }
    expected = {name: run(engine_of(model, False), copies(requests)) for name, requests in waves.items()}
    options = {"block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 8}
    group = Ranks(model, names, speculative_config=option("eagle3", head), dtype="float32", **options)
    try:
        for name, requests in waves.items():
            group[name].call(draft_freely).result()
            group[name].add(*requests)
        outputs = group.wait_for_all()
        for name in names:
            for request_id, outcome in expected[name].items():
                assert [token.token_id for token in outputs[RequestId(request_id)]] == outcome.token_ids
            assert group[name].engine.stats().speculation.num_draft_tokens > 0
    finally:
        group.close()


@pytest.mark.slow
def test_steps_are_launched_ahead_where_drafts_do_not_pay(model: Path, heads: dict[str, Path]) -> None:
    """At measured prices: garbage only costs time."""
    requests = []
    for number in range(6):
        sampling = SamplingParams(temperature=1.0, seed=number, max_tokens=60, ignore_eos=True)
        requests.append(Request(RequestId(str(number)), [5, 6, 7 + number], 3, sampling))
    expected = run(engine_of(model, False), copies(requests))
    options = {"async_scheduling": True, "speculative_config": option("eagle3", heads["eagle3"])}
    clients = Clients(engine_of(model, False, **options), requests)
    clients.run(at_once=4)
    assert clients.tokens == {name: outcome.token_ids for name, outcome in expected.items()}
    assert clients.num_launched_ahead > 5


def test_hidden_states_are_kept_only_while_drafts_may_pay(model: Path, heads: dict[str, Path]) -> None:
    """After a rest the head's context begins anew, for requests with a twin and without."""
    engine = head_engine(model, "eagle", heads["repeating"])
    assert engine.speculator is not None
    engine.speculator._costs = Forbidding()
    sampling = SamplingParams(temperature=1, seed=1, max_tokens=220, ignore_eos=True)
    requests = [Request(RequestId(name), [5, 6, 7], 3, sampling) for name in "abc"]
    expected = run(engine_of(model, False), copies(requests))
    kept, stored = engine.runner.model.hidden_states, []  # type: ignore[union-attr]  # it is a CausalLM
    store, kept.store = kept.store, lambda slots, states: (stored.append(len(slots)), store(slots, states))
    outputs: dict[str, list[int]] = {name: [] for name in "abc"}
    late = requests.pop()
    for request in requests:
        engine.add(request)
    for step in range(1000):
        if step == 40:
            engine.add(late)
        if step == 120:
            assert 20 < len(stored) < 70
            assert engine.stats().speculation.num_draft_tokens == 0
            draft_freely(engine)
        for output in engine.run(engine.schedule()).outputs:
            outputs[output.request_id] += output.token_ids
        engine.check_integrity()
    assert outputs == {name: outcome.token_ids for name, outcome in expected.items()}
    assert engine.stats().speculation.num_accepted_tokens > 0


def test_adapters_do_not_change_the_model_s_layers_in_the_head(model: Path, heads: dict[str, Path]) -> None:
    """What adapters add is planned for the rows of the model's step."""
    engine = quiet_engine(model, "eagle", heads["eagle"])
    request = request_of("a", 20)
    engine.add(request)
    advance(engine, request, 25)
    drafts = drafts_of(engine, request, 4)
    target = engine.runner.model
    assert isinstance(target, CausalLM)
    assert isinstance(target.head, Linear)
    target.head.addend = lambda _, output: -output
    assert drafts_of(engine, request, 4) == drafts
    head = drafter_of(engine)._model
    assert isinstance(head, DraftHead)
    assert head._model.embedding is not target.embedding
    assert head._model.embedding.weight is target.embedding.weight


def test_without_a_head_no_hidden_states_are_kept(model: Path, heads: dict[str, Path]) -> None:
    def keeps(engine: Engine) -> bool:
        return getattr(engine.runner.model, "hidden_states", None) is not None

    assert not keeps(engine_of(model, False))
    assert not keeps(engine_of(model, True))
    assert keeps(engine_of(model, False, speculative_config=option("eagle", heads["eagle"])))
