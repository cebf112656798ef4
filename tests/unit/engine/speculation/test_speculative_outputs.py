"""Outputs of a real engine are the same with drafts as without."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.engine.speculation.draft_costs import DraftCosts
from baton.engine.speculation.lookup import LookupDrafter
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case, slow_except
from tests.unit.engine.grammar_rig import byte_tokenizer, schema_grammar
from tests.unit.engine.speculation.speculation_rig import (
    OracleDrafter,
    assert_equal,
    copies,
    draft_always,
    engine_of,
    run,
)

VOCAB = range(3, VOCAB_SIZE)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3") / "model")


def random_request(draw: random.Random, name: str, shared: list[int]) -> Request:
    """A random request with a prefix of a shared prompt, and any of the sampling options."""
    seed = draw.getrandbits(60)
    every = {step: frozenset(range(0, VOCAB_SIZE, step)) for step in (2, 9)}
    bias = {token_id: draw.uniform(-5, 5) for token_id in draw.sample(VOCAB, 30)} | {5: -100.0}
    sampling = draw.choice((
        SamplingParams(temperature=0),
        SamplingParams(temperature=1.0, seed=seed),
        SamplingParams(temperature=0.8, seed=seed, top_p=0.8, top_k=20, min_p=0.01),
        SamplingParams(temperature=0.7, seed=seed, repetition_penalty=1.3, ignore_eos=True),
        SamplingParams(temperature=0, presence_penalty=0.5, frequency_penalty=0.4),
        SamplingParams(temperature=1.0, seed=seed, logit_bias=bias),
        SamplingParams(temperature=0.9, seed=seed, logprobs=3, frequency_penalty=0.2),
        SamplingParams(temperature=0, prompt_logprobs=1, logprobs=0),
        SamplingParams(temperature=1.0, seed=seed, min_tokens=9, stop_token_ids=every[2]),
        SamplingParams(temperature=1.0, seed=seed, stop_token_ids=every[9]),
    ))  # fmt: skip
    prompt = shared[: draw.randrange(len(shared))] + draw.choices(VOCAB, k=draw.randrange(1, 20))
    return Request(RequestId(name), prompt, len(prompt), replace(sampling, max_tokens=draw.randrange(9, 40)))


@pytest.mark.parametrize("seed", slow_except(range(6), {0}))
@pytest.mark.parametrize("memory", [1 << 20, 1 << 17], ids=["plenty", "scarce"])
def test_outputs_equal_those_without_drafts(model: Path, seed: int, memory: int) -> None:
    draw = random.Random(seed)
    shared = draw.choices(VOCAB, k=50)
    requests = [random_request(draw, str(number), shared) for number in range(25)]
    expected = run(engine_of(model, False, kv_cache_memory_bytes=memory), copies(requests))
    engine = engine_of(model, True, kv_cache_memory_bytes=memory)
    draft_always(engine, {name: outcome.token_ids for name, outcome in expected.items()}, seed)
    assert_equal(run(engine, requests), expected)
    counters = engine.stats().speculation
    assert counters.num_accepted_tokens > 100
    assert counters.num_draft_tokens - counters.num_accepted_tokens > 50
    assert sum(counters.accepted_by_position) == counters.num_accepted_tokens
    assert engine.scheduler.num_cached_tokens > 0
    assert (engine.scheduler.num_preemptions > 0) == (memory < 1 << 20)


def test_repetitions_are_drafted_from_the_request_itself(model: Path) -> None:
    """A bias makes the outputs repeat."""
    bias = dict.fromkeys((7, 8), 20.0)
    sampling = SamplingParams(temperature=0, logit_bias=bias, max_tokens=60, repetition_penalty=1.05, ignore_eos=True)
    requests = [Request(RequestId(str(n)), [7, 8, 7, 9 + n], 4, sampling) for n in range(3)]
    expected = run(engine_of(model, False), copies(requests))
    engine = engine_of(model, True)
    assert_equal(run(engine, requests), expected)
    assert engine.stats().speculation.num_accepted_tokens > 60


def test_drafts_stop_where_they_do_not_pay(model: Path) -> None:
    engine = engine_of(model, True)
    assert engine.speculator is not None
    engine.speculator._costs = DraftCosts()  # measured ones
    wrong = {"1": [5] * 300}
    engine.speculator._drafter = LookupDrafter(OracleDrafter(wrong, 0, VOCAB, right=1.0), engine.finish_rule)
    request = Request(
        RequestId("1"), [1, 2, 3], 3, SamplingParams(max_tokens=250, logit_bias={5: -100}, ignore_eos=True)
    )
    run(engine, [request])
    assert engine.stats().speculation.num_drafts < 60


@pytest.mark.parametrize("architecture", ["gemma3", "deepseek-v3"])
def test_windows_and_latents(architecture: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    draw = random.Random(1)
    shared = draw.choices(VOCAB, k=60)
    requests = [random_request(draw, str(number), shared) for number in range(10)]
    options = {"hybrid_kv_cache": architecture == "gemma3"}
    expected = run(engine_of(model, False, **options), copies(requests))
    engine = engine_of(model, True, **options)
    draft_always(engine, {name: outcome.token_ids for name, outcome in expected.items()}, 1)
    assert_equal(run(engine, requests), expected)
    assert engine.stats().speculation.num_accepted_tokens > 50


@pytest.mark.parametrize("seed", slow_except(range(4), {0}))
def test_grammars(seed: int, tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model", tokenizer=byte_tokenizer())
    draw = random.Random(seed)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 9999}, "long_name": {"enum": ["ab", "x"]}},
        "required": ["a", "long_name"],
    }
    grammars = (schema_grammar(schema), Grammar(GrammarKind.REGEX, "[a-c]+-[0-9]+"), None)
    requests = []
    for number in range(12):
        prompt = draw.choices(VOCAB, k=draw.randrange(1, 20))
        sampling = draw.choice((
            SamplingParams(temperature=1.0, seed=number),
            SamplingParams(temperature=0, repetition_penalty=1.1),
            SamplingParams(temperature=0.8, top_p=0.9, seed=number, logprobs=1, min_tokens=6),
        ))  # fmt: skip
        limited = replace(sampling, grammar=grammars[number % 3], max_tokens=draw.choice((9, 60)))
        requests.append(Request(RequestId(str(number)), prompt, len(prompt), limited))
    expected = run(engine_of(model, False), copies(requests))
    engine = engine_of(model, True)
    draft_always(engine, {name: outcome.token_ids for name, outcome in expected.items()}, seed)
    assert engine.speculator is not None
    accepted: set[str] = set()
    note = engine.speculator.note

    def noting(item: ScheduledRequest, num_accepted: int) -> None:
        accepted.update([item.request.request_id] * (num_accepted > 1))
        note(item, num_accepted)

    engine.speculator.note = noting  # type: ignore[method-assign]
    assert_equal(run(engine, requests), expected)
    constrained = {each.request_id for each in requests if each.sampling.grammar is not None}
    assert len(accepted & constrained) >= 3


@pytest.mark.parametrize("is_scarce", [True, slow_case(False)])
@pytest.mark.parametrize("architecture", ["qwen3-next", *map(slow_case, ("nemotron-h", "falcon-h1", "mamba2"))])
def test_recurrent_state_takes_no_wrong_drafts(architecture: str, is_scarce: bool, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    draw = random.Random(2)
    shared = draw.choices(VOCAB, k=60)
    requests = [random_request(draw, str(number), shared) for number in range(12)]
    options: dict[str, object] = {"state_checkpoint_tokens": 8}
    plain = engine_of(model, False, **options, kv_cache_memory_bytes=1 << 23)
    if is_scarce:
        options["kv_cache_memory_bytes"] = (33 + 2 * plain.groups.num_state_blocks) * plain.layout.block_bytes
    expected = run(plain, copies(requests))
    engine = engine_of(model, True, **{"kv_cache_memory_bytes": 1 << 23, **options})
    draft_always(engine, {name: outcome.token_ids for name, outcome in expected.items()}, 1)
    assert_equal(run(engine, requests), expected)
    counters = engine.stats().speculation
    assert counters.num_accepted_tokens > 50
    assert counters.num_draft_tokens - counters.num_accepted_tokens > 20
    assert engine.scheduler.num_cached_tokens > 0 or is_scarce
    assert (engine.scheduler.num_preemptions > 0) == is_scarce
