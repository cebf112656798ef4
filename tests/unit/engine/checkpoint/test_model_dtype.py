"""The type of numbers that a checkpoint is loaded in."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.checkpoint.model_config import (
    model_config_of,
    read_model_config,
)
from baton.engine.config import EngineConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.kv.dtype import kv_bytes_per_token
from baton.engine.kv.fingerprint import compatibility_fingerprint
from baton.engine.kv.layout import KVCacheLayout
from tests.unit.engine.checkpoint.small_configs import LLAMA, write


def test_the_requested_dtype_wins_over_the_checkpoints(tmp_path: Path) -> None:
    assert read_model_config(write(tmp_path, LLAMA), "float32").dtype == "float32"
    with pytest.raises(UnsupportedModel, match="int8"):
        read_model_config(write(tmp_path, LLAMA), "int8")


AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}}
GEMMA3 = LLAMA | {"architectures": ["Gemma3ForCausalLM"]}
GLM4 = LLAMA | {"architectures": ["Glm4ForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "stored", "requested", "on_gpu", "on_cpu"),
    [
        (LLAMA, "float16", "auto", "float16", "float32"),
        (LLAMA, "float16", "float16", "float16", "float32"),
        (LLAMA, "float16", "bfloat16", "bfloat16", "bfloat16"),
        (LLAMA, "bfloat16", "float16", "float16", "bfloat16"),
        (LLAMA, "float32", "float16", "float16", "bfloat16"),
        (LLAMA | AWQ, "float16", "auto", "float16", "bfloat16"),
        (LLAMA | AWQ, "float16", "float16", "float16", "bfloat16"),
        (LLAMA | AWQ, "float16", "float32", "float32", "float32"),
        (GEMMA3, "float16", "auto", "bfloat16", "float32"),
        (GLM4, "float16", "auto", "bfloat16", "float32"),
    ],
)
def test_float16_is_computed_on_gpus_and_replaced_on_cpus(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    config: dict[str, Any],
    stored: str,
    requested: str,
    on_gpu: str,
    on_cpu: str,
) -> None:
    caplog.set_level(logging.INFO)
    write(tmp_path, config | {"torch_dtype": stored})
    assert read_model_config(tmp_path, requested, on_cpu=False).dtype == on_gpu
    caplog.clear()
    assert read_model_config(tmp_path, requested).dtype == on_cpu
    is_replaced = f"no CPU kernels for float16: served as {on_cpu}" in caplog.text
    assert is_replaced is (requested in ("auto", "float16"))


@pytest.mark.parametrize(("config", "title"), [(GEMMA3, "Gemma 3"), (GLM4, "GLM-4-0414 and GLM-Z1")])
def test_a_family_that_overflows_float16_is_refused_in_it(tmp_path: Path, config: dict[str, Any], title: str) -> None:
    write(tmp_path, config)
    with pytest.raises(UnsupportedModel, match=f"^{title} overflows float16; use bfloat16 or float32$"):
        read_model_config(tmp_path, "float16", on_cpu=False)


def test_an_engines_options_and_device_choose_the_type(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    engine = EngineConfig(model=str(tmp_path), dtype="float16", device="cuda:1")
    assert model_config_of(engine).dtype == "float16"
    assert model_config_of(dataclasses.replace(engine, device="cpu")).dtype == "bfloat16"


def test_float16_takes_as_much_kv_as_bfloat16_and_is_not_exchanged_with_it(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    half = read_model_config(tmp_path, "float16", on_cpu=False)
    other = read_model_config(tmp_path, "bfloat16", on_cpu=False)
    layouts = [KVCacheLayout.of(each, 16) for each in (half, other)]
    assert [each.dtype for each in layouts] == [torch.float16, torch.bfloat16]
    assert layouts[0].block_bytes == layouts[1].block_bytes == 16 * kv_bytes_per_token(half)
    fingerprints = {compatibility_fingerprint(tmp_path, each, 16, "") for each in (half, other)}
    assert len(fingerprints) == 2


def test_gemmas_multiplier_is_rounded_to_the_models_type(tmp_path: Path) -> None:
    write(tmp_path, LLAMA | {"architectures": ["GemmaForCausalLM"], "hidden_size": 72, "head_dim": 16})
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16), ("float32", torch.float64)):
        expected = torch.tensor(72.0, dtype=torch.float64).sqrt().to(dtype)
        assert read_model_config(tmp_path, name, on_cpu=False).embedding_multiplier == expected.item()
