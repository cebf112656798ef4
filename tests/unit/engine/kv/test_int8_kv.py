"""Int8 KV: accuracy compared with plain KV, contents of blocks, and rejected options."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import KV_CACHE_DTYPES, EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import UnsupportedModel
from baton.engine.kv.capacity import num_blocks_in
from baton.engine.kv.dtype import kv_cache_dtype, row_bytes
from baton.engine.kv.layout import KVCacheLayout
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.perplexity import logits_of


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


@pytest.fixture(scope="module", params=["llama3", "deepseek-v3", "glm4"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


def test_logits_are_nearer_than_in_bfloat16(model: Path) -> None:
    tokens = random_tokens(300, 1)
    exact = logits_of(PagedModel(model, dtype="float32"), tokens, 70)
    near = logits_of(PagedModel(model, dtype="float32", kv_dtype="int8"), tokens, 70)
    rough = logits_of(PagedModel(model, dtype="bfloat16"), tokens, 70)
    # Errors of the median token: a token routed to another expert is far off either way.
    errors = [(logits - exact).square().mean(-1).sqrt().median() for logits in (near, rough)]
    assert 1e-4 * exact.std() < errors[0] < errors[1] < 0.03 * exact.std()


def test_blocks_hold_their_scales(model: Path) -> None:
    config = read_model_config(model, "bfloat16")
    layout, usual = KVCacheLayout.of(config, 16, kv_dtype="int8"), KVCacheLayout.of(config, 16)
    assert layout.dtype == torch.int8
    assert layout.block_shape == (*usual.block_shape[:-1], usual.block_shape[-1] + 4)
    rows = layout.block_bytes // row_bytes(usual.block_shape[-1], "int8")
    assert layout.block_bytes == rows * (usual.block_shape[-1] + 4)
    assert usual.block_bytes == rows * row_bytes(usual.block_shape[-1], "bfloat16")
    assert num_blocks_in(1 << 20, layout) == (1 << 20) // layout.block_bytes > num_blocks_in(1 << 20, usual)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_unsupported_kv_dtypes_are_refused(llama3: Path, dtype: str) -> None:
    config = read_model_config(llama3, dtype)
    assert [kv_cache_dtype(config, requested) for requested in ("auto", dtype, "int8")] == [dtype, dtype, "int8"]
    for wrong in ({*KV_CACHE_DTYPES} - {"auto", dtype, "int8", "int4", "fp8", "fp8_e4m3"}) | {"fp8_e5m2"}:
        with pytest.raises(UnsupportedModel, match=f"kv_cache_dtype '{wrong}' .* only auto, {dtype}, int8, int4, fp8"):
            Engine(EngineConfig(model=str(llama3), dtype=dtype, kv_cache_dtype=wrong))
    with pytest.raises(UnsupportedModel, match=f"int8 is for CPUs, but the device is cuda:1: use auto, {dtype} or fp8"):
        attention_for(config, 16, torch.device("cuda:1"), "int8")
    assert attention_for(replace(config, num_heads=2), 16, CPU, dtype) is not None
