"""Outputs of a real engine are the same with a draft model as without, however good it is."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.speculation.base import Offer
from baton.engine.vision.image import Image
from benchmarks.first_layers import with_first_layers
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.draft_checkpoints import copy_of, with_config, with_noise, with_vocabulary
from tests.marks import slow_except
from tests.unit.engine.grammar_rig import byte_tokenizer
from tests.unit.engine.group_rig import Ranks
from tests.unit.engine.speculation.draft_rig import (
    acceptance,
    draft_freely,
    drafter_of,
    drafting_engine,
    option,
    run_and_free,
)
from tests.unit.engine.speculation.speculation_rig import assert_equal, copies, engine_of, run
from tests.unit.engine.speculation.test_speculative_outputs import VOCAB, random_request
from tests.unit.engine.tensor_rig import TensorRig
from tests.unit.engine.test_async_scheduling import Clients

LONGEST = 112  # tokens
SCARCE = 390_000  # bytes of KV
QUALITIES = ("same", "similar", "shallow", "garbage")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3") / "model")


@pytest.fixture(scope="module")
def drafts(model: Path) -> dict[str, Path]:
    """Draft models by their quality."""
    return {
        "same": model,
        "similar": with_noise(model, model.parent / "similar", 0.05),
        "shallow": with_first_layers(model, model.parent / "shallow", 1),
        "garbage": make_checkpoint("qwen3", model.parent / "garbage", seed=7),
    }


def requests_of(seed: int, count: int) -> list[Request]:
    draw = random.Random(seed)
    shared = draw.choices(VOCAB, k=50)
    return [random_request(draw, str(number), shared) for number in range(count)]


@pytest.mark.parametrize("memory", slow_except([1 << 21, SCARCE], {SCARCE}), ids=["plenty", "scarce"])
@pytest.mark.parametrize("quality", slow_except(QUALITIES, {"similar"}))
def test_outputs_equal_those_without_drafts(model: Path, drafts: dict[str, Path], quality: str, memory: int) -> None:
    requests = requests_of(3, 20)
    expected = run(engine_of(model, False, max_model_len=LONGEST), copies(requests))
    engine = drafting_engine(model, drafts[quality], kv_cache_memory_bytes=memory, max_model_len=LONGEST)
    assert_equal(run_and_free(engine, requests), expected)
    counters = engine.stats().speculation
    assert counters.num_draft_tokens > 100
    assert counters.drafting_s > 0
    assert (engine.scheduler.num_preemptions > 0) == (memory == SCARCE)
    rate = acceptance(engine)
    assert {"same": rate > 0.98, "similar": 0.3 < rate < 1, "shallow": rate < 0.9, "garbage": rate < 0.2}[quality], rate


def test_the_same_model_is_always_right_at_any_temperature(model: Path) -> None:
    """Its noise is that of the request."""
    sampling = SamplingParams(temperature=1.2, seed=5, top_p=0.95, max_tokens=41, ignore_eos=True)
    engine = drafting_engine(model, model)
    request = Request(RequestId("a"), [5, 6, 7], 3, sampling)
    expected = run(engine_of(model, False), copies([request]))
    assert_equal(run_and_free(engine, [request]), expected)
    counters = engine.stats().speculation
    assert counters.num_accepted_tokens == counters.num_draft_tokens > 20
    assert counters.accepted_by_position[3] > 3


def test_a_shared_prefix_is_computed_once(model: Path) -> None:
    prompt = list(range(3, 60))
    sampling = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    engine = drafting_engine(model, model)
    blocks = drafter_of(engine)._model.blocks
    for name in ("first", "second"):
        run_and_free(engine, [Request(RequestId(name), list(prompt), len(prompt), sampling)])
    twin = drafter_of(engine).twins.of(Request(RequestId("third"), list(prompt), len(prompt), sampling))
    assert twin.num_missing < blocks.block_size
    other = Request(RequestId("fourth"), list(prompt), len(prompt), sampling, cache_salt="another tenant")
    assert drafter_of(engine).twins.of(other).num_missing == len(prompt) - 1


@pytest.mark.parametrize(
    ("target", "draft", "options"),
    [
        pytest.param("gemma3", "qwen3", {"hybrid_kv_cache": True}, marks=pytest.mark.slow),
        pytest.param("qwen3", "gemma3", {"kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
        pytest.param("deepseek-v3", "mixtral", {}, marks=pytest.mark.slow),
        pytest.param("mixtral", "deepseek-v3", {}, marks=pytest.mark.slow),
        pytest.param("qwen3-next", "qwen3", {"kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
        pytest.param("nemotron-h", "qwen3", {"state_checkpoint_tokens": 8}, marks=pytest.mark.slow),
    ],
)
def test_models_of_two_families(target: str, draft: str, options: dict[str, object], tmp_path: Path) -> None:
    model = make_checkpoint(target, tmp_path / "model")
    requests = requests_of(1, 10)
    expected = run(engine_of(model, False, **options), copies(requests))
    engine = drafting_engine(model, make_checkpoint(draft, tmp_path / "draft"), **options)
    assert_equal(run_and_free(engine, requests), expected)
    assert engine.stats().speculation.num_draft_tokens > 50


@pytest.mark.slow
def test_grammars(tmp_path: Path) -> None:
    """The draft model knows nothing of grammars: where they decide, its drafts are wrong."""
    model = make_checkpoint("qwen3", tmp_path / "model", tokenizer=byte_tokenizer())
    grammars = (Grammar(GrammarKind.REGEX, "[a-c]+-[0-9]+"), None)
    requests = []
    for number in range(8):
        sampling = SamplingParams(temperature=number % 2, seed=number, max_tokens=30, grammar=grammars[number % 4 // 2])
        prompt = random.Random(number).choices(VOCAB, k=9)
        requests.append(Request(RequestId(str(number)), prompt, len(prompt), sampling))
    expected = run(engine_of(model, False), copies(requests))
    engine = drafting_engine(model, with_noise(model, tmp_path / "draft", 0.05))
    assert_equal(run_and_free(engine, requests), expected)
    assert engine.stats().speculation.num_accepted_tokens > 20


@pytest.mark.slow
def test_rank_0_of_a_tensor_parallel_group_has_the_draft_model(model: Path, drafts: dict[str, Path]) -> None:
    requests = requests_of(4, 8)
    expected = run(engine_of(model, False, max_model_len=LONGEST), copies(requests))
    options = {"block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 8, "max_model_len": LONGEST}
    rig = TensorRig(model, 2, speculative_config=option(drafts["similar"]), **options)
    try:
        rig.call(draft_freely)
        assert_equal(rig.call(lambda engine: run_and_free(engine, requests)), expected)
        assert rig.engine.stats().speculation.num_accepted_tokens > 30
        assert rig.follower(1).pool.shape[0] == rig.engine.pool.shape[0]
    finally:
        rig.close()


@pytest.mark.slow
def test_expert_parallel_ranks_have_a_draft_model_each(drafts: dict[str, Path], tmp_path: Path) -> None:
    model = make_checkpoint("mixtral", tmp_path / "model")
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
    group = Ranks(model, names, speculative_config=option(drafts["similar"]), dtype="float32", **options)
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
@pytest.mark.parametrize("quality", ["same", "garbage"])
def test_steps_are_launched_ahead_where_drafts_do_not_pay(model: Path, drafts: dict[str, Path], quality: str) -> None:
    """At measured prices. On a CPU a step is computed when it is launched, but its results come as late as on a GPU."""
    sampling = SamplingParams(temperature=1.0, max_tokens=60, ignore_eos=True)
    requests = [Request(RequestId(str(n)), [5, 6, 7 + n], 3, replace(sampling, seed=n)) for n in range(6)]
    expected = run(engine_of(model, False), copies(requests))
    options = {"async_scheduling": True, "speculative_config": option(drafts[quality])}
    clients = Clients(engine_of(model, False, **options), requests)
    clients.run(at_once=4)
    assert clients.tokens == {name: outcome.token_ids for name, outcome in expected.items()}
    assert clients.num_launched_ahead > 5


def test_few_passes_measure_their_time(model: Path) -> None:
    """A deep draft of passes whose time is unknown could hold up a step for long."""
    drafter = drafter_of(drafting_engine(model, model, 64))
    request = Request(RequestId("a"), [5, 6, 7], 3, SamplingParams(max_tokens=200))
    assert drafter.offer(request, 64) == Offer(3)
    for _ in range(3):
        drafter._times.add(1, 0.1)
    assert drafter.offer(request, 64) == Offer(64)
    for _ in range(65):
        drafter._times.begin_step()
    assert drafter.offer(request, 64) == Offer(3)


def test_aborted_requests_leave_nothing(model: Path, drafts: dict[str, Path]) -> None:
    draw, engine = random.Random(5), drafting_engine(model, drafts["similar"])
    names = [str(number) for number in range(16)]
    for name in names:
        sampling = SamplingParams(temperature=1, seed=int(name), max_tokens=40, ignore_eos=True)
        prompt = draw.choices(VOCAB, k=draw.randrange(1, 50))
        engine.add(Request(RequestId(name), prompt, len(prompt), sampling))
        engine.run(engine.schedule())
        engine.check_integrity()
        engine.abort(RequestId(draw.choice(names)))
        engine.check_integrity()
    assert engine.stats().speculation.num_draft_tokens > 0
    for name in names:
        engine.abort(RequestId(name))
    run_and_free(engine, [])
    assert engine.blocks.num_free == engine.blocks.num_usable


def test_images_and_long_requests_have_no_drafts(model: Path, tmp_path: Path) -> None:
    draft = with_config(copy_of(model, tmp_path / "short"), max_position_embeddings=32)
    engine = drafting_engine(model, draft)
    sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    request = Request(RequestId("long"), [5] * 8, 8, sampling)
    expected = run(engine_of(model, False), copies([request]))
    assert_equal(run_and_free(engine, [request]), expected)
    assert 0 < engine.stats().speculation.num_accepted_tokens < 30
    assert drafter_of(engine).offer(Request(RequestId("b"), [5] * 30, 30, sampling), 4) == Offer(2, is_ready=False)
    assert drafter_of(engine).offer(Request(RequestId("c"), [5] * 32, 32, sampling), 4) is None
    image = Image(0, 1, 1, bytes(16), bytes(3))
    assert drafter_of(engine).offer(Request(RequestId("d"), [5], 1, sampling, images=(image,)), 4) is None


def test_tokens_that_only_one_of_the_models_has(tmp_path: Path) -> None:
    """The larger vocabulary has padding, which the other model can neither read nor write."""
    model = make_checkpoint("qwen3", tmp_path / "model", tokenizer=byte_tokenizer())
    small = with_vocabulary(copy_of(model, tmp_path / "small"), VOCAB_SIZE - 8)
    sampling = SamplingParams(temperature=1.5, seed=3, max_tokens=40, ignore_eos=True, logit_bias={VOCAB_SIZE - 1: 1.0})
    requests = [Request(RequestId(str(n)), [5, 6, n], 3, replace(sampling, seed=n)) for n in range(4)]
    requests.append(Request(RequestId("padding"), [5, VOCAB_SIZE - 1, 7], 3, sampling))
    for target, draft in ((model, small), (small, model)):
        if target is small:
            plain = replace(sampling, logit_bias={})
            requests = [Request(each.request_id, [5, 6, 7], 3, plain) for each in requests]
        expected = run(engine_of(target, False), copies(requests))
        engine = drafting_engine(target, draft)
        assert_equal(run_and_free(engine, copies(requests)), expected)
        assert engine.stats().speculation.num_accepted_tokens > 10
