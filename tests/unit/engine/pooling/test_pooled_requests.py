"""Embeddings of an engine, compared with transformers' on tiny random checkpoints."""

import gc
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import InvalidRequest
from baton.engine.pooling.config import PoolingParams
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.embedding_models import (
    EmbeddingOracle,
    Vector,
    add_pooling,
    floats,
    make_embedding_model,
    without_head,
)
from tests.unit.engine.tensor_rig import TensorRig

ATOL = 2e-5  # elements of a vector of length 1
LENGTHS = (1, 3, 16, 17, 64, 131, 200)


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


def make_engine(model: Path, **options: object) -> Engine:
    given: dict[str, object] = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 21, "num_threads": 1}
    return Engine(EngineConfig(model=str(model), **(given | options)))  # type: ignore[arg-type]


def pooled(name: str, token_ids: Sequence[int], params: PoolingParams | None = None, priority: int = 0) -> Request:
    return Request(
        RequestId(name),
        list(token_ids),
        len(token_ids),
        SamplingParams(max_tokens=1),
        priority=priority,
        pooling=params or PoolingParams(),
    )


@dataclass
class Outputs:
    """Results of requests by their ids."""

    vectors: dict[str, Vector]
    tokens: dict[str, list[int]]


def run(engine: Engine, *requests: Request) -> Outputs:
    """Run requests to their end; every block must be free afterwards."""
    outputs = Outputs({}, {})
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.run(engine.schedule()).outputs:
            assert output.error is None
            if output.sampled is not None:
                outputs.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.embedding is not None:
                assert output.finish_reason is FinishReason.STOP
                outputs.vectors[output.request_id] = floats(output.embedding)
        engine.check_integrity()
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    return outputs


def embeddings(engine: Engine, inputs: Sequence[Sequence[int]], params: PoolingParams | None = None) -> list[Vector]:
    """Return the embeddings of inputs that are computed together."""
    vectors = run(engine, *(pooled(str(place), each, params) for place, each in enumerate(inputs))).vectors
    return [vectors[str(place)] for place in range(len(inputs))]


def assert_close(vectors: Sequence[Vector], expected: Sequence[Vector]) -> None:
    for vector, other in zip(vectors, expected, strict=True):
        np.testing.assert_allclose(vector, other, atol=ATOL, rtol=0)


INPUTS = [random_tokens(length, length) for length in LENGTHS]


@pytest.mark.parametrize("kind", ["last", "mean", "cls"])
@pytest.mark.parametrize("architecture", ["qwen3", "llama3"])
def test_embeddings_equal_transformers(architecture: str, kind: str, tmp_path: Path) -> None:
    model = make_embedding_model(architecture, tmp_path / "model", kind)
    oracle = EmbeddingOracle(model, kind)
    vectors = embeddings(make_engine(model), INPUTS)
    expected = [oracle.embedding(each) for each in INPUTS]
    assert_close(vectors, expected)
    if kind != "cls":  # otherwise a comparison would prove little
        assert max(np.abs(expected[0] - other).max() for other in expected[1:]) > 0.1


@pytest.mark.parametrize("kind", ["last", "mean", "cls"])
def test_chunks_and_batches_change_nothing(kind: str, tmp_path: Path) -> None:
    model = make_embedding_model("qwen3", tmp_path / "model", kind)
    alone = [embeddings(make_engine(model, enable_prefix_caching=False), [each])[0] for each in INPUTS]
    chunked = make_engine(model, max_num_batched_tokens=23, max_num_seqs=4)
    assert_close(embeddings(chunked, INPUTS), alone)
    first, second = embeddings(make_engine(model), INPUTS), embeddings(make_engine(model), INPUTS)
    assert all(map(np.array_equal, first, second))  # the same steps give the same bits


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_only_last_token_pooling_reads_the_prefix_cache(kind: str, tmp_path: Path) -> None:
    model = make_embedding_model("qwen3", tmp_path / "model", kind)
    oracle, engine = EmbeddingOracle(model, kind), make_engine(model)
    prefix = random_tokens(96, 1)
    run(engine, pooled("first", prefix))
    inputs = [prefix + random_tokens(20, 2), prefix]
    requests = [pooled(str(place), each) for place, each in enumerate(inputs)]
    vectors = run(engine, *requests).vectors
    assert [request.num_cached_tokens for request in requests] == ([96, 80] if kind == "last" else [0, 0])
    assert_close([vectors["0"], vectors["1"]], [oracle.embedding(each) for each in inputs])


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_preempted_inputs_start_over(kind: str, tmp_path: Path) -> None:
    model = make_embedding_model("llama3", tmp_path / "model", kind)
    oracle = EmbeddingOracle(model, kind)
    engine = make_engine(model, kv_cache_memory_bytes=1 << 18, max_num_batched_tokens=5, max_num_seqs=4)
    assert engine.stats().num_blocks < 40
    prompts = [random_tokens(30, seed) for seed in range(3)]
    sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    chats = [Request(RequestId(f"c{place}"), list(each), 30, sampling) for place, each in enumerate(prompts)]
    texts = [random_tokens(120, 100 + seed) for seed in range(8)]
    inputs = [pooled(f"e{place}", each, priority=1) for place, each in enumerate(texts)]
    outputs = run(engine, *chats, *inputs)
    assert sum(request.num_preemptions for request in inputs) > 0
    assert_close([outputs.vectors[f"e{place}"] for place in range(8)], [oracle.embedding(each) for each in texts])
    again = [Request(each.request_id, list(prompt), 30, sampling) for each, prompt in zip(chats, prompts, strict=True)]
    assert outputs.tokens == run(make_engine(model, max_num_batched_tokens=5, max_num_seqs=4), *again).tokens


def test_an_aborted_input_leaves_nothing(tmp_path: Path) -> None:
    model = make_embedding_model("qwen3", tmp_path / "model", "mean")
    engine = make_engine(model, max_num_batched_tokens=32, max_num_seqs=8)
    engine.add(pooled("a", random_tokens(200, 1)))
    for _ in range(3):
        engine.run(engine.schedule())
    pooler = engine.runner.pooler
    assert pooler is not None
    assert len(pooler._sums) == 1
    assert engine.abort(RequestId("a"))
    engine.check_integrity()
    assert not engine.has_work
    assert engine.stats().num_free_blocks == engine.stats().num_blocks
    gc.collect()
    assert len(pooler._sums) == 0


def test_an_input_may_fill_the_context(tmp_path: Path) -> None:
    model = make_embedding_model("qwen3", tmp_path / "model", "last")
    engine = make_engine(model, max_model_len=64)
    whole = random_tokens(64, 1)
    assert_close(embeddings(engine, [whole]), [EmbeddingOracle(model, "last").embedding(whole)])
    with pytest.raises(InvalidRequest, match="65 tokens, but the context has at most 64"):
        engine.add(pooled("longer", random_tokens(65, 1)))
    with pytest.raises(InvalidRequest, match="at least one token"):
        engine.add(pooled("empty", []))


def test_options_of_an_embedding(tmp_path: Path) -> None:
    model = make_embedding_model("qwen3", tmp_path / "model", "last", normalizes=False)
    oracle, tokens = EmbeddingOracle(model, "last"), random_tokens(40, 1)
    engine = make_engine(model)
    whole = oracle.pooled(tokens).numpy()
    assert abs(np.linalg.norm(whole) - 1) > 0.5
    np.testing.assert_allclose(embeddings(engine, [tokens])[0], whole, atol=1e-4, rtol=0)
    assert_close(embeddings(engine, [tokens], PoolingParams(normalizes=True)), [oracle.embedding(tokens)])
    with pytest.raises(InvalidRequest, match="does not allow to truncate"):
        engine.add(pooled("a", tokens, PoolingParams(dimensions=16)))
    add_pooling(model, "last", normalizes=True, matryoshka_dimensions=[16, 32])
    engine = make_engine(model)
    short = embeddings(engine, [tokens], PoolingParams(dimensions=16))[0]
    np.testing.assert_allclose(short, whole[:16] / np.linalg.norm(whole[:16]), atol=ATOL, rtol=0)
    with pytest.raises(InvalidRequest, match="dimensions is 17, but the model's config allows only 16, 32"):
        engine.add(pooled("a", tokens, PoolingParams(dimensions=17)))


def test_a_checkpoint_without_head_only_embeds(tmp_path: Path) -> None:
    whole = make_embedding_model("llama3", tmp_path / "whole", "mean")
    bare = without_head(whole, tmp_path / "bare")
    engine = make_engine(bare)
    assert not engine.generates
    assert all(map(np.array_equal, embeddings(engine, INPUTS), embeddings(make_engine(whole), INPUTS)))
    with pytest.raises(InvalidRequest, match="only makes embeddings"):
        engine.add(Request(RequestId("chat"), [3, 4], 2, SamplingParams(max_tokens=2)))


def test_a_model_without_pooling_needs_the_option(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    with pytest.raises(InvalidRequest, match="makes no embeddings"):
        make_engine(model).add(pooled("a", [3, 4]))
    oracle, tokens = EmbeddingOracle(model, "mean"), random_tokens(40, 1)
    assert_close(embeddings(make_engine(model, pooling="mean"), [tokens]), [oracle.embedding(tokens)])


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_int8_kv_is_close(kind: str, tmp_path: Path) -> None:
    model = make_embedding_model("qwen3", tmp_path / "model", kind)
    oracle = EmbeddingOracle(model, kind)
    for vector, tokens in zip(embeddings(make_engine(model, kv_cache_dtype="int8"), INPUTS), INPUTS, strict=True):
        assert vector @ oracle.embedding(tokens) > 0.99


@pytest.mark.parametrize("kind", ["last", "mean"])
def test_tensor_parallel_ranks_give_the_embeddings_of_one(kind: str, tmp_path: Path) -> None:
    model = make_embedding_model("llama3", tmp_path / "model", kind)
    rig = TensorRig(without_head(model, tmp_path / "bare"), 2, max_num_batched_tokens=64, max_num_seqs=16)
    try:
        assert_close(rig.call(lambda engine: embeddings(engine, INPUTS)), embeddings(make_engine(model), INPUTS))
    finally:
        rig.close()
