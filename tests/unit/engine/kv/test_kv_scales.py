"""FP8 KV scales: their names in checkpoints, invalid ones, and models that need none."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import InvalidCheckpoint
from baton.engine.kv.scales import UNSCALED, KVScales, load_kv_scales
from baton.engine.models.causal_lm import CausalLM
from tests.checkpoints import make_checkpoint
from tests.kv_scales import add_kv_scales, add_tensors

CPU = torch.device("cpu")
PREFIX = "model.layers.1.self_attn"


@pytest.fixture
def llama3(tmp_path: Path) -> Path:
    return make_checkpoint("llama3", tmp_path / "model")


def number(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, value, dtype=dtype)


def loaded(model: Path) -> KVScales:
    return load_kv_scales(Weights(model, torch.bfloat16, CPU), PREFIX)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ({}, UNSCALED),
        ({"k_scale": number(0.3), "v_scale": number(0.7, 1)}, (0.3, 0.7)),
        ({"k_proj.k_scale": number(0.3, 1), "v_proj.v_scale": number(0.7)}, (0.3, 0.7)),
        ({"attn.k_scale": number(0.3), "attn.v_scale": number(0.7)}, (0.3, 0.7)),
        ({"k_scale": number(0.25, dtype=torch.bfloat16), "v_scale": number(4, dtype=torch.float16)}, (0.25, 4.0)),
        ({"kv_scale": number(0.3)}, (0.3, 0.3)),
        ({"kv_scale": number(9), "k_scale": number(0.3), "v_scale": number(0.7)}, (0.3, 0.7)),
    ],
)
def test_scales_are_read_under_all_names_in_use(
    llama3: Path, tensors: dict[str, Tensor], expected: tuple[float, float] | KVScales
) -> None:
    add_tensors(llama3, {f"{PREFIX}.{name}": tensor for name, tensor in tensors.items()})
    found = loaded(llama3)
    assert (found.key, found.value) == pytest.approx(
        (expected.key, expected.value) if isinstance(expected, KVScales) else expected
    )


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"k_scale": number(0.3)}, f"{PREFIX} has a k_scale but no v_scale"),
        ({"v_proj.v_scale": number(0.3)}, f"{PREFIX} has a v_scale but no k_scale"),
        ({"k_scale": number(-1), "v_scale": number(1)}, f"{PREFIX}.k_scale is -1.0: a KV scale must be a finite"),
        ({"k_scale": number(1), "v_scale": number(0, 1)}, f"{PREFIX}.v_scale is 0.0"),
        ({"k_scale": number(torch.inf), "v_scale": number(1)}, f"{PREFIX}.k_scale is inf"),
        ({"k_scale": number(torch.nan), "v_scale": number(1)}, f"{PREFIX}.k_scale is nan"),
        ({"k_scale": number(1, 2), "v_scale": number(1, 2)}, rf"{PREFIX}.k_scale has shape \[2\]"),
    ],
)
def test_invalid_scales_are_refused(llama3: Path, tensors: dict[str, Tensor], message: str) -> None:
    add_tensors(llama3, {f"{PREFIX}.{name}": tensor for name, tensor in tensors.items()})
    with pytest.raises(InvalidCheckpoint, match=message):
        loaded(llama3)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "fp8"])
def test_a_model_with_scales_loads_with_any_kv_dtype(llama3: Path, kv_dtype: str) -> None:
    add_kv_scales(llama3, first=0.02)
    add_tensors(llama3, {f"{PREFIX}.q_scale": number(1), f"{PREFIX}.prob_scale": number(1)})
    engine = Engine(EngineConfig(model=str(llama3), kv_cache_dtype=kv_dtype, kv_cache_memory_bytes=1 << 20))
    model = engine.runner.model
    assert isinstance(model, CausalLM)
    found = [layer.attention.scales for layer in model.layers]
    assert [(each.key, each.value) for each in found] == [
        (pytest.approx(0.02 * (1 + layer)), pytest.approx(0.02 * (1.7 + layer))) for layer in range(3)
    ]


def test_latent_attention_ignores_scales(tmp_path: Path) -> None:
    model = add_kv_scales(make_checkpoint("deepseek-v2-lite", tmp_path / "model"))
    engine = Engine(EngineConfig(model=str(model), dtype="bfloat16", kv_cache_memory_bytes=1 << 20))
    assert engine.pool.dtype == torch.bfloat16
