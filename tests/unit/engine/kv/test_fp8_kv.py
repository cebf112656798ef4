"""FP8 KV: accuracy compared with plain KV, scales, and contents of blocks."""

import random
from pathlib import Path

import pytest
import torch

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.kv.dtype import kv_bytes_per_token, kv_cache_dtype, row_bytes
from baton.engine.kv.layout import KVCacheLayout
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.kv_scales import add_kv_scales
from tests.paged_model import PagedModel
from tests.unit.engine.perplexity import logits_of


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_kv_scales(make_checkpoint("qwen3", tmp_path_factory.mktemp("scaled") / "model"))


@pytest.fixture(params=["llama3", "scaled"])
def model(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


def test_logits_stay_near_those_of_exact_kv(model: Path) -> None:
    """An element's relative error is 1/38 in the root mean square and 1/16 at most. The errors are independent, so
    that an attention's sum of many elements has no larger one, and the errors of three layers add up to twice that.
    """
    tokens = random_tokens(300, 1)
    exact = logits_of(PagedModel(model, dtype="float32"), tokens, 70)
    near = logits_of(PagedModel(model, dtype="float32", kv_dtype="fp8"), tokens, 70)
    error = (near - exact).square().mean(-1).sqrt().median() / exact.std()
    assert 0.002 < error < 0.1


def test_a_checkpoints_scales_are_used(tmp_path: Path) -> None:
    """The scales are so small that nearly all KV saturates."""
    model = make_checkpoint("llama3", tmp_path / "model")
    tokens = random_tokens(100, 1)
    exact = logits_of(PagedModel(model, dtype="float32"), tokens, 70)
    add_kv_scales(model, first=1e-4)
    for kv_dtype, is_far in (("auto", False), ("int8", False), ("fp8", True)):
        logits = logits_of(PagedModel(model, dtype="float32", kv_dtype=kv_dtype), tokens, 70)
        assert ((logits - exact).square().mean().sqrt() > 0.3 * exact.std()) == is_far


def test_blocks_hold_no_scales(llama3: Path) -> None:
    config = read_model_config(llama3, "bfloat16")
    layout, usual = KVCacheLayout.of(config, 16, kv_dtype="fp8"), KVCacheLayout.of(config, 16)
    assert layout == KVCacheLayout.of(config, 16, kv_dtype="fp8_e4m3")
    assert layout.dtype == torch.float8_e4m3fn
    assert layout.block_shape == usual.block_shape
    assert 2 * layout.block_bytes == usual.block_bytes
    assert row_bytes(128, "fp8") == 128
    assert 2 * kv_bytes_per_token(config, "fp8") == kv_bytes_per_token(config)
    assert [kv_cache_dtype(config, requested) for requested in ("fp8", "fp8_e4m3")] == ["fp8", "fp8"]
