"""The fused append of KV: Triton's kernel in its interpreter, its choice, and its use by layers."""

import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from baton.engine.attention import fp8_rows, kv_append
from baton.engine.attention.flashinfer import FlashInferAttention
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.kind import AttentionKind
from baton.engine.attention.kv_append import KVAppend, append_for, append_in_torch, check_kernel, is_appendable
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.config import ModelConfig
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.kv.scales import UNSCALED
from baton.engine.layers import attention
from baton.engine.layers.norm import RMSNorm
from baton.engine.ops.base import Rotation
from baton.engine.ops.torch_ops import TorchOps
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.paged_model import PagedModel
from tests.unit.engine.attention_rig import model_config
from tests.unit.engine.emulation.flashinfer_emulation import EMULATION
from tests.unit.engine.kv_append_cases import LAYER, random_case

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BF16 = torch.bfloat16
IN_TRITON = """
from baton.engine.attention.kv_append_triton import append
from tests.unit.engine.kv_append_cases import check_kernel_on_cases

check_kernel_on_cases(append)
print("equal")
"""


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    append_for.cache_clear()
    yield
    append_for.cache_clear()


@pytest.mark.slow
def test_the_triton_kernel_matches_torch() -> None:
    """Run Triton's interpreter in a subprocess, since it must be selected before Triton is imported."""
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", IN_TRITON],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stdout == "equal\n", run.stderr


@pytest.mark.parametrize("seed", range(8))
def test_torch_matches_the_separate_operations(seed: int) -> None:
    case = random_case(seed)
    case = replace(case, heads=case.heads.float(), pool=case.pool.float())  # so that only the order of sums may differ
    num_kv_heads = (case.heads.shape[1] - case.num_heads) // 2
    pool = case.pool.clone()
    cache = KVCacheLayout.layer_cache(pool, LAYER)
    norms = case.norms and replace(case.norms, weight=case.norms.weight.float())
    qk, v = case.heads.split_with_sizes([case.num_heads + num_kv_heads, num_kv_heads], dim=1)
    expected = TorchOps().rotate(qk, case.rotation, norms)
    queries = append_in_torch(case.heads, case.num_heads, case.rotation, norms, cache, case.slots)
    torch.testing.assert_close(queries, expected[:, : case.num_heads], atol=1e-5, rtol=1e-5)
    for token, slot in enumerate(case.slots.tolist()):
        keys, values = cache[slot // cache.shape[4], :, :, :, slot % cache.shape[4]].transpose(0, 1).flatten(1, 2)
        torch.testing.assert_close(keys, expected[token, case.num_heads :], atol=1e-5, rtol=1e-5)
        assert torch.equal(values, v[token])
    changed = (pool != case.pool).any(-1).sum()
    assert changed == 2 * num_kv_heads * len(case.slots)


def append_used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let layers append by torch, in fp32 and for any width of heads; return what grows with each append."""
    calls: list[int] = []

    def append(heads: Tensor, *arguments: object) -> Tensor:
        calls.append(len(heads))
        return append_in_torch(heads, *arguments)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(kv_append, "DTYPES", (torch.float32,))
    monkeypatch.setattr(kv_append, "HEAD_DIMS", (16, 32))
    monkeypatch.setattr(attention, "append_for", lambda *_: append)
    return calls


def flashinfer(config: ModelConfig, block_size: int) -> FlashInferAttention:
    heads = AttentionHeads.of(config)
    return FlashInferAttention(config.attention_scale, block_size, heads, CPU, kernels=EMULATION, spans=config.spans)


def reference(config: ModelConfig, block_size: int) -> TorchAttention:
    return TorchAttention.for_model(config, block_size)


@pytest.mark.parametrize("backend", [flashinfer, reference])
@pytest.mark.parametrize(
    ("architecture", "is_fused"),
    [
        ("llama3", True),
        ("qwen3", True),
        ("olmo2", False),  # norms of all heads at once
        slow_case("gemma3", True),  # an offset of norms, windows
        slow_case("glm4", True),  # rotates half of a head, in neighbouring pairs
        slow_case("qwen3-next", True),  # output gates, layers without KV
    ],
)
def test_models_append_in_one_call(
    architecture: str,
    is_fused: bool,
    backend: Callable[[ModelConfig, int], FlashInferAttention | TorchAttention],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    tokens = random.Random(0).choices(range(3, VOCAB_SIZE), k=40)

    def logits() -> Tensor:
        paged = PagedModel(model, dtype="float32", attention_of=backend)
        return torch.cat([paged.step({"text": part})["text"] for part in (tokens[:35], tokens[35:39], tokens[39:])])

    usual = logits()
    calls = append_used(monkeypatch)
    torch.testing.assert_close(logits(), usual, atol=2e-4, rtol=2e-4)
    num_layers = len(calls) // 3
    assert calls == num_layers * [35] + num_layers * [4] + num_layers * [1]
    assert bool(calls) == is_fused


@pytest.mark.parametrize(
    ("options", "can_append"),
    [
        ({}, True),
        ({"rotates": False}, False),
        ({"has_keys": False}, False),
        ({"has_values": False}, False),
        ({"kind": AttentionKind(group=1)}, False),  # its slots are not on the device
        ({"value_norm": RMSNorm(torch.ones(64), 1e-6)}, False),
    ],
)
def test_only_plain_layers_append_in_one_call(options: dict[str, Any], can_append: bool) -> None:
    unused: Any = None
    config = model_config(None, "bfloat16", head_dim=64)
    layer = attention.GroupedQueryAttention(config, unused, unused, None, UNSCALED, unused, **options)
    assert layer.can_append == can_append


def test_only_shapes_with_a_kernel_are_appended() -> None:
    case = random_case(3)
    cache = KVCacheLayout.layer_cache(case.pool, LAYER)
    heads, count, rotation, norms = case.heads, case.num_heads, case.rotation, case.norms
    assert is_appendable(heads, count, rotation, norms, cache)
    assert is_appendable(heads, count, rotation, norms, cache.to(fp8_rows.DTYPE))
    scaled = Rotation(rotation.table, rotation.positions, rotation.interleaved, torch.ones(len(heads)))
    wide = Rotation(torch.ones(9, 2 * heads.shape[2]), rotation.positions, rotation.interleaved)
    assert not is_appendable(heads, count, scaled, norms, cache)
    assert not is_appendable(heads, count, wide, norms, cache)
    assert not is_appendable(heads[:0], count, rotation, norms, cache)
    assert not is_appendable(heads.float(), count, rotation, norms, cache.float())
    assert not is_appendable(heads, count, rotation, norms, cache.float())
    assert not is_appendable(heads, count + 1, rotation, norms, cache)
    assert not is_appendable(heads.mT.contiguous().mT, count, rotation, norms, cache)
    assert not is_appendable(heads[..., :48], count, rotation, norms, cache[..., :48])


def test_a_kernel_is_tried_first() -> None:
    def wrong(*arguments: object) -> Tensor:
        return append_in_torch(*arguments) * 1.1  # type: ignore[arg-type]  # passed on as they are

    for cached_dtype in (BF16, fp8_rows.DTYPE):
        check_kernel(append_in_torch, CPU, BF16, cached_dtype)
        with pytest.raises(ArithmeticError, match="its results are wrong"):
            check_kernel(wrong, CPU, BF16, cached_dtype)


def no_triton() -> KVAppend:
    raise ImportError("No module named 'triton'")


def test_a_kernel_that_fails_is_not_used_and_the_reason_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kv_append, "load_kernel", no_triton)
    with caplog.at_level(logging.WARNING):
        assert append_for(CUDA, BF16, BF16) is append_for(CUDA, BF16, BF16) is None
    (record,) = caplog.records  # once, not per layer
    assert record.getMessage().endswith("does not work: ImportError: No module named 'triton'")


def test_a_kernel_that_works_is_used_on_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_append, "load_kernel", lambda: append_in_torch)
    monkeypatch.setattr(kv_append, "check_kernel", lambda *_: None)
    assert append_for(CUDA, BF16, BF16) is append_in_torch
    assert append_for(CUDA, BF16, fp8_rows.DTYPE) is append_in_torch
    assert append_for(CPU, BF16, BF16) is None
    assert append_for(CUDA, torch.float32, torch.float32) is None
    assert append_for(CUDA, BF16, torch.int8) is None
