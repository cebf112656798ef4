"""Calls of FlashInfer's row operations, compared with torch's; the kernels themselves need a GPU."""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.layers import activation, attention, joint_norms, latent_attention, linear
from baton.engine.layers import norm as norm_layer
from baton.engine.ops import factory as ops_factory
from baton.engine.ops.base import HeadNorms, Rotation
from baton.engine.ops.factory import ops_for
from baton.engine.ops.flashinfer_ops import FlashInferOps
from baton.engine.ops.torch_ops import TorchOps
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.paged_model import PagedModel
from tests.unit.engine.emulation.flashinfer_ops_emulation import Called

EPS = 1e-6
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
TOLERANCES = {torch.bfloat16: (2**-8, 2**-7), torch.float16: (2**-11, 2**-10)}
NUM_POSITIONS = 300


def placed(tensor: Tensor, offset_bytes: int = 0) -> Tensor:
    """Copy a tensor to memory that begins `offset_bytes` after a multiple of 128."""
    memory = torch.empty(tensor.nbytes + 256, dtype=torch.uint8)
    start = -memory.data_ptr() % 128 + offset_bytes
    result = memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
    assert result.data_ptr() % 128 == offset_bytes % 128
    return result.copy_(tensor)


def drawn(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return placed((2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(dtype))


def close(result: Tensor, expected: Tensor) -> None:
    """Assert equality up to a few units in the last place; `expected` is in fp32."""
    atol, rtol = TOLERANCES[result.dtype]
    torch.testing.assert_close(result.float(), expected, atol=4 * atol, rtol=rtol)


def rotation_of(num_tokens: int, width: int, interleaved: bool) -> Rotation:
    angles = torch.outer(torch.arange(float(NUM_POSITIONS)), torch.rand(width // 2))
    table = torch.cat([angles.cos(), angles.sin()], dim=-1)
    return Rotation(table, torch.randint(NUM_POSITIONS, (num_tokens,)), interleaved)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 4096), (3, 64), (130, 1024), (7, 40)])
def test_norms_agree_with_torch(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    called, reference = Called(), TorchOps()
    ops = FlashInferOps(called.functions())
    x, addend = drawn(*shape, dtype=dtype), drawn(*shape, dtype=dtype, seed=1)
    weight = drawn(shape[1], dtype=dtype, seed=2)
    close(ops.rms_norm(x, weight, EPS), reference.rms_norm(x.float(), weight.float(), EPS))
    heads = x.view(1, *shape)
    assert torch.equal(ops.rms_norm(heads, weight, EPS)[0], ops.rms_norm(x, weight, EPS))
    total, expected = reference.add_rms_norm(x.float(), addend.float(), weight.float(), EPS)
    places = x.data_ptr(), addend.data_ptr()
    added, normed = ops.add_rms_norm(x, addend, weight, EPS)
    assert (added.data_ptr(), normed.data_ptr()) == places  # no memory is allocated
    close(added, total)
    close(normed, expected)
    assert called.counts == {"norm": 3, "add_norm": 1}


@DTYPES
def test_norms_accept_strided_rows(dtype: torch.dtype) -> None:
    """Latents are such rows: each is followed by a rotary key."""
    called, x = Called(), drawn(9, 576, dtype=dtype)[:, :512]
    weight = drawn(512, dtype=dtype, seed=1)
    result = FlashInferOps(called.functions()).rms_norm(x, weight, EPS)
    close(result, TorchOps().rms_norm(x.float(), weight.float(), EPS))
    assert called.counts == {"norm": 1}


@DTYPES
@pytest.mark.parametrize(("num_rows", "size"), [(1, 3072), (70, 256), (5, 12)])
def test_silu_agrees_with_torch(dtype: torch.dtype, num_rows: int, size: int) -> None:
    called = Called()
    ops = FlashInferOps(called.functions())
    whole = drawn(num_rows, 2 * size + 8, dtype=dtype)
    for gate_up in (placed(whole[:, : 2 * size]), whole[:, : 2 * size]):
        close(ops.gate_and_mul(gate_up), TorchOps().gate_and_mul(gate_up.float()))
    assert called.counts["silu_and_mul"] >= 1


@DTYPES
@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_rotation_agrees_with_torch(dtype: torch.dtype, has_norms: bool, interleaved: bool, seed: int) -> None:
    draw = random.Random(seed)
    num_tokens, width = draw.choice((1, 3, 100)), draw.choice((64, 128, 256))
    counts = draw.choice(((1,), (4, 1), (8, 2), (3, 3)))
    num_heads = sum(counts)
    whole = drawn(num_tokens, num_heads + 2, width, dtype=dtype, seed=seed)
    before, heads = whole.clone(), whole[:, :num_heads]  # like queries and keys in front of values
    rows = [drawn(1, width, dtype=dtype, seed=seed + place + 1) for place in range(len(counts))]
    weight = placed(torch.cat([row.repeat(count, 1) for row, count in zip(rows, counts, strict=True)]))
    norms = HeadNorms(weight, counts, EPS) if has_norms else None
    exact = HeadNorms(weight.float(), counts, EPS) if has_norms else None
    rotation = rotation_of(num_tokens, width, interleaved)
    expected = TorchOps().rotate(heads.float(), rotation, exact)
    called = Called()
    result = FlashInferOps(called.functions()).rotate(heads, rotation, norms)
    atol, rtol = TOLERANCES[dtype]
    torch.testing.assert_close(result.float(), expected, atol=8 * atol * float(expected.abs().max()), rtol=rtol)
    assert called.counts == {"rotate": 1} | ({"norm": len(counts)} if has_norms else {})
    assert torch.equal(whole[:, num_heads:], before[:, num_heads:])
    if not interleaved:
        assert result.data_ptr() == heads.data_ptr()


@pytest.mark.parametrize("has_norms", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("width", "rotary_dim", "is_served"), [(128, 96, True), (64, 32, True), (128, 72, False)])
def test_only_the_first_dimensions_of_a_head_are_rotated(
    width: int, rotary_dim: int, is_served: bool, interleaved: bool, has_norms: bool
) -> None:
    heads = drawn(5, 3, width, dtype=torch.bfloat16)
    weight = placed(drawn(1, width, dtype=torch.bfloat16, seed=1).repeat(3, 1))
    norms = HeadNorms(weight, (2, 1), EPS) if has_norms else None
    exact = HeadNorms(weight.float(), (2, 1), EPS) if has_norms else None
    rotation, called = rotation_of(5, rotary_dim, interleaved), Called()
    expected = TorchOps().rotate(heads.float(), rotation, exact)
    result = FlashInferOps(called.functions()).rotate(heads, rotation, norms)
    torch.testing.assert_close(result.float(), expected, atol=2**-4 * float(expected.abs().max()), rtol=2**-7)
    assert called.counts.get("rotate", 0) == is_served


@pytest.mark.parametrize(
    "x",
    [
        drawn(4, 64, dtype=torch.float32),
        drawn(4, 20, dtype=torch.bfloat16),  # not a multiple of a vector
        drawn(0, 64, dtype=torch.bfloat16),
        placed(torch.randn(4, 64).bfloat16(), 2),
        placed(torch.randn(4, 64).bfloat16(), 16),  # rows of 128 bytes begin at multiples of 128
        drawn(4, 68, dtype=torch.bfloat16)[:, :64],
        drawn(4, 128, dtype=torch.bfloat16)[:, ::2],
    ],
)
def test_norms_of_unsupported_rows_fall_back_to_torch(x: Tensor) -> None:
    called, reference = Called(), TorchOps()
    ops, weight = FlashInferOps(called.functions()), torch.ones(x.shape[1], dtype=x.dtype)
    assert torch.equal(ops.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS))
    expected = reference.add_rms_norm(x, x.clone(), weight, EPS)
    assert all(map(torch.equal, ops.add_rms_norm(x, x.clone(), weight, EPS), expected))
    assert called.counts == {}


def test_misaligned_rows_fall_back_to_torch() -> None:
    called, reference = Called(), TorchOps()
    ops, rotation = FlashInferOps(called.functions()), rotation_of(4, 64, interleaved=False)
    rows = placed(torch.randn(4, 192).bfloat16(), 2)
    weight, heads = torch.ones(64, dtype=torch.bfloat16), rows[:, :128].unflatten(1, (2, 64))
    assert torch.equal(ops.gate_and_mul(rows), reference.gate_and_mul(rows))
    assert torch.equal(ops.rms_norm(rows[:, :64], weight, EPS), reference.rms_norm(rows[:, :64], weight, EPS))
    assert torch.equal(ops.rotate(heads, rotation), reference.rotate(heads, rotation))
    assert called.counts == {}


@DTYPES
def test_norms_with_an_offset_have_kernels_of_their_own(dtype: torch.dtype) -> None:
    called, x, addend = Called(), drawn(9, 128, dtype=dtype), drawn(9, 128, dtype=dtype, seed=1)
    ops, reference, weight = FlashInferOps(called.functions()), TorchOps(), drawn(128, dtype=dtype, seed=2)
    close(ops.rms_norm(x, weight, EPS, 1.0), reference.rms_norm(x.float(), weight.float(), EPS, 1.0))
    total, expected = reference.add_rms_norm(x.float(), addend.float(), weight.float(), EPS, 1.0)
    added, normed = ops.add_rms_norm(x, addend, weight, EPS, 1.0)
    close(added, total)
    close(normed, expected)
    assert called.counts == {"offset_norm": 1, "add_offset_norm": 1}


@DTYPES
def test_head_norms_with_an_offset(dtype: torch.dtype) -> None:
    heads, weight = drawn(9, 6, 128, dtype=dtype)[:, 1:5], drawn(4, 128, dtype=dtype, seed=2)
    weight[1:3] = weight[0]
    rotation = rotation_of(9, 128, interleaved=False)
    exact = HeadNorms(weight.float(), (3, 1), EPS, 1.0)
    expected = TorchOps().rotate(heads.float(), rotation, exact)
    called = Called()
    result = FlashInferOps(called.functions()).rotate(heads, rotation, HeadNorms(weight, (3, 1), EPS, 1.0))
    atol, rtol = TOLERANCES[dtype]
    torch.testing.assert_close(result.float(), expected, atol=8 * atol * float(expected.abs().max()), rtol=rtol)
    assert result.data_ptr() == heads.data_ptr()
    assert called.counts["rotate"] == 1
    assert "norm" not in called.counts


def test_other_activations_than_silu() -> None:
    called, gate_up = Called(), drawn(9, 128, dtype=torch.bfloat16)
    ops, reference = FlashInferOps(called.functions()), TorchOps()
    close(ops.gate_and_mul(gate_up, "gelu_tanh"), reference.gate_and_mul(gate_up.float(), "gelu_tanh"))
    clamped = ops.gate_and_mul(gate_up, "clamped_swiglu")
    assert torch.equal(clamped, reference.gate_and_mul(gate_up, "clamped_swiglu"))
    assert called.counts == {"gelu_tanh_and_mul": 1}


def test_silu_copies_strided_rows() -> None:
    called, x = Called(), drawn(4, 128, dtype=torch.bfloat16)[:, ::2]
    close(FlashInferOps(called.functions()).gate_and_mul(x), TorchOps().gate_and_mul(x.float()))
    assert called.counts == {"silu_and_mul": 1}
    nothing = drawn(0, 64, dtype=torch.bfloat16)
    assert FlashInferOps(called.functions()).gate_and_mul(nothing).shape == (0, 32)


def test_unsupported_operations_fall_back_to_torch() -> None:
    called, reference = Called(), TorchOps()
    ops, x = FlashInferOps(called.functions()), drawn(5, 64, dtype=torch.bfloat16)
    for width in (16, 80, 96):
        heads, rotation = drawn(5, 3, width, dtype=torch.bfloat16), rotation_of(5, width, interleaved=False)
        assert torch.equal(ops.rotate(heads, rotation), reference.rotate(heads, rotation))
    exact = drawn(5, 3, 64, dtype=torch.float32)
    rotation = rotation_of(5, 64, interleaved=True)
    assert torch.equal(ops.rotate(exact, rotation), reference.rotate(exact, rotation))
    found, expected = ops.quantise(x), reference.quantise(x)
    assert all(map(torch.equal, found, expected))
    assert torch.equal(ops.scale(x, expected[1], x[0]), reference.scale(x, expected[1], x[0]))
    assert called.counts == {}


@pytest.mark.parametrize("architecture", ["qwen3", "llama3", "deepseek-v3", "glm4", "olmo2"])
def test_models_are_as_exact_as_with_torch_ops(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In-place operations overwrite nothing that a layer still needs. The sizes suit any alignment of CPU memory."""
    sizes = {"hidden_size": 32, "intermediate_size": 48}
    if architecture == "deepseek-v3":
        sizes |= {"qk_rope_head_dim": 64, "moe_intermediate_size": 16, "n_shared_experts": 1}
    else:
        sizes |= {"head_dim": 64}
    monkeypatch.setattr(linear, "can_have_panels", lambda _: False)  # as on a GPU
    model = make_checkpoint(architecture, tmp_path / "model", **sizes)
    tokens = random.Random(0).choices(range(3, VOCAB_SIZE), k=90)

    def logits() -> Tensor:
        paged = PagedModel(model, dtype="bfloat16")
        return torch.cat([paged.step({"text": tokens[:70]})["text"], paged.step({"text": tokens[70:]})["text"]])

    called = Called()
    ops = FlashInferOps(called.functions())
    exact, usual = PagedModel(model, dtype="float32").step({"text": tokens})["text"], logits()
    for module in (attention, joint_norms, latent_attention, activation, norm_layer):
        monkeypatch.setattr(module, "ops_for", lambda _: ops)
    errors = [(each - exact).square().mean(-1).sqrt().median() for each in (logits(), usual)]
    assert errors[0] < 1.2 * errors[1]
    num_layers, is_latent = 3, architecture == "deepseek-v3"
    norms_of_layer = {"llama3": 0, "olmo2": 4}.get(architecture, 2)  # that are not fused with an addition
    num_steps, adds = 2, 2 * num_layers if architecture != "olmo2" else 1  # the last norm of OLMo 2 only
    assert called.counts["add_norm"] == num_steps * adds
    assert called.counts["rotate"] == num_steps * (1 + is_latent) * num_layers
    first_norm = 0 if architecture == "olmo2" else 1
    assert called.counts["norm"] == num_steps * (first_norm + norms_of_layer * num_layers)
    assert called.counts["silu_and_mul"] >= 2 * num_layers


@pytest.fixture
def _empty_ops_cache() -> Iterator[None]:
    ops_factory._cuda_ops.cache_clear()
    yield
    ops_factory._cuda_ops.cache_clear()


@pytest.mark.usefixtures("_empty_ops_cache")
def test_a_missing_library_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", None)  # so that its import fails
    found = [ops_for(torch.device(device)) for device in ("cuda", "cuda:1", "cuda")]
    assert all(isinstance(ops, TorchOps) for ops in found)
    assert caplog.text.count('pip install "baton-serve[gpu]"') == 1


@pytest.mark.usefixtures("_empty_ops_cache")
def test_gpus_use_the_flashinfer_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        rmsnorm = fused_add_rmsnorm = gemma_rmsnorm = gemma_fused_add_rmsnorm = silu_and_mul = None
        gelu_tanh_and_mul = apply_rope_with_cos_sin_cache_inplace = None

    monkeypatch.setitem(sys.modules, "flashinfer", Library)
    assert isinstance(ops_for(torch.device("cuda:1")), FlashInferOps)
    assert ops_for(torch.device("cuda")) is ops_for(torch.device("cuda:1"))
    assert not isinstance(ops_for(torch.device("cpu")), FlashInferOps)
