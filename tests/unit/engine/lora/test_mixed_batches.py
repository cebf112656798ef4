"""Requests with different adapters share batches, KV blocks and preemptions as if each ran alone."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from baton.engine.engine import Engine
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.pooling.config import PoolingParams
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.adapters import make_adapter
from tests.marks import slow_case
from tests.unit.engine.lora.lora_rig import GREEDY, lora_engine, random_tokens, request, run, with_adapters
from tests.unit.engine.speculation.draft_rig import draft_freely, option

NAMES = (None, "all", "attention", "down")
PROMPT = random_tokens(50)
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'


def one_of_each(prompt: Sequence[int] = PROMPT, sampling: SamplingParams = GREEDY) -> list[Request]:
    return [request(str(name), [*prompt], name, sampling) for name in NAMES]


def alone(engine: Engine, prompt: Sequence[int] = PROMPT, sampling: SamplingParams = GREEDY) -> dict[str, list[int]]:
    """Return the tokens of a request with each adapter that runs alone."""
    return {each.request_id: run(engine, each)[each.request_id] for each in one_of_each(prompt, sampling)}


@pytest.fixture(scope="module")
def expected(model: Path, adapters: dict[str, Path]) -> dict[str, list[int]]:
    tokens = alone(with_adapters(model, adapters, enable_prefix_caching=False))
    assert len({tuple(each) for each in tokens.values()}) == len(NAMES)
    return tokens


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_scheduling": True},
        {"speculative_config": NGRAM},
        {"max_num_batched_tokens": 24, "max_num_seqs": 5},  # prompts in chunks, next to decodes
        {"max_loras": 1},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_a_mixed_batch_gives_each_request_its_tokens(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]], options: dict[str, object]
) -> None:
    engine = with_adapters(model, adapters, **options)
    for _ in range(2):  # the second time the prompts are in the prefix cache
        assert run(engine, *one_of_each()) == expected


def test_a_draft_model_without_adapters(model: Path, adapters: dict[str, Path], expected: dict[str, list[int]]) -> None:
    engine = with_adapters(model, adapters, speculative_config=option(model))
    draft_freely(engine)
    for _ in range(2):
        assert run(engine, *one_of_each()) == expected
    counters = engine.stats().speculation
    assert 0 < counters.num_accepted_tokens < counters.num_draft_tokens, "those of adapters are sometimes wrong"


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "int8"},
        slow_case({"kv_cache_dtype": "int4"}),
        {"dtype": "bfloat16", "quantization": "int8"},
        slow_case({"dtype": "bfloat16", "quantization": "int4"}),
        slow_case({"dtype": "bfloat16"}),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_quantised_kv_and_weights(model: Path, adapters: dict[str, Path], options: dict[str, object]) -> None:
    engine = with_adapters(model, adapters, enable_prefix_caching=False, **options)
    separate = alone(engine)
    assert len({tuple(each) for each in separate.values()}) == len(NAMES)
    mixed = run(engine, *one_of_each())
    if engine.config.dtype == "float32":
        assert mixed == separate
    else:  # oneDNN's products may round differently with other numbers of rows
        assert {name: tokens[0] for name, tokens in mixed.items()} == {name: each[0] for name, each in separate.items()}


def test_the_prefix_cache_never_crosses_adapters(model: Path, adapters: dict[str, Path]) -> None:
    engine = with_adapters(model, adapters)
    for name in NAMES:
        first = request(f"{name}-1", PROMPT, name)
        run(engine, first)
        assert first.num_cached_tokens == 0
        again = request(f"{name}-2", PROMPT, name)
        assert run(engine, again)[f"{name}-2"] == first.token_ids[len(PROMPT) :]
        assert again.num_cached_tokens == 48
    engine.adapters.load("copy", adapters["all"])  # the same contents under another name: the same KV
    copy = request("copy", PROMPT, "copy")
    run(engine, copy)
    assert copy.num_cached_tokens == 48


def test_hashes_before_the_digest_is_known_match_no_block(model: Path, adapters: dict[str, Path]) -> None:
    engine = with_adapters(model, adapters)
    base, unknown = request("base", PROMPT), request("unknown", PROMPT, "all")
    run(engine, base)
    assert set(unknown.hash_blocks(16)).isdisjoint(base.hash_blocks(16))
    run(engine, unknown)
    known = request("known", PROMPT, "all", adapter_digest=engine.adapters.infos()[0].digest)
    assert known.hash_blocks(16)[:3] == unknown.block_hashes[:3]


def test_preempted_requests_keep_their_adapters(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    sampling = replace(GREEDY, max_tokens=40)
    whole = alone(with_adapters(model, adapters, enable_prefix_caching=False), sampling=sampling)
    small = with_adapters(model, adapters, kv_cache_memory_bytes=20 * 16 * 3 * 2 * 2 * 16 * 4)
    assert run(small, *one_of_each(sampling=sampling)) == whole
    assert small.stats().num_preemptions > 0
    assert {name: tokens[:12] for name, tokens in whole.items()} == expected


def test_logprobs_and_sampling_are_those_of_the_adapter(model: Path, adapters: dict[str, Path]) -> None:
    engine = with_adapters(model, adapters, enable_prefix_caching=False)
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=8, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    separate = alone(engine, sampling=sampling)
    outputs = []
    for each in one_of_each(sampling=sampling):
        engine.add(each)
    while engine.has_work:
        outputs += engine.run(engine.schedule()).outputs
    for name in map(str, NAMES):
        sampled = [each.sampled for each in outputs if each.request_id == name and each.sampled is not None]
        assert [each.token_id for each in sampled] == separate[name]
        assert all(each.logprobs is not None for each in sampled)
    first = {
        name: next(each.prompt_logprobs for each in outputs if each.request_id == name) for name in map(str, NAMES)
    }
    assert len({round(each[0].chosen.logprob, 4) for each in first.values()}) == len(NAMES)


def test_an_adapter_replaced_while_a_request_runs(model: Path, adapters: dict[str, Path]) -> None:
    engine = with_adapters(model, adapters)
    expected = alone(engine)
    running = request("running", PROMPT, "all")
    engine.add(running)
    engine.run(engine.schedule())
    engine.adapters.unload("all")
    engine.adapters.load("all", adapters["down"])
    outputs = run(engine, request("new", PROMPT, "all"))
    assert outputs["new"] == expected["down"]
    assert running.token_ids[len(PROMPT) :] == expected["all"]


def test_embeddings_of_an_adapter(model: Path, adapters: dict[str, Path]) -> None:
    engine = with_adapters(model, adapters, pooling="mean")
    vectors = {}
    for name in NAMES:
        pooled = Request(
            RequestId(str(name)), [*PROMPT], len(PROMPT), SamplingParams(), adapter=name, pooling=PoolingParams()
        )
        engine.add(pooled)
        while engine.has_work:
            for output in engine.run(engine.schedule()).outputs:
                vectors[output.request_id] = output.embedding or vectors.get(output.request_id)
    assert len(set(vectors.values())) == len(NAMES)


@pytest.mark.slow
def test_a_grammar_and_an_adapter(tmp_path: Path) -> None:
    model = Path(str(files("baton"))) / "bundled_model"
    engine = lora_engine(model, kv_cache_memory_bytes=1 << 24)
    engine.adapters.load("a", make_adapter(model, tmp_path / "a", ["q_proj", "v_proj"]))
    sampling = SamplingParams(temperature=0, max_tokens=8, grammar=Grammar(GrammarKind.CHOICE, '["yes", "no"]'))
    outputs = run(engine, request("a", PROMPT, "a", sampling), request("base", PROMPT, None, sampling))
    assert all(0 < len(tokens) < 8 for tokens in outputs.values())
    engine.close()
