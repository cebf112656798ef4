"""FP8 products of few tokens: the Triton kernel, when it is used, and its fallback."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.layers.fp8_tokens import product as module
from baton.engine.layers.fp8_tokens.product import ScaledMatrix, exact_product, few_token_product, tried_kernel
from baton.engine.layers.fp8_tokens.quantise import E4M3
from baton.engine.layers.weights import fp8_weight
from baton.engine.layers.weights.fp8_weight import BlockScaledWeight, RowScaledWeight
from tests.paged_model import CPU
from tests.unit.engine.layers.test_fp8_tokens import run_python


def exact(x: Tensor, weight: ScaledMatrix, bias: Tensor | None) -> Tensor:
    product = exact_product(x, weight).bfloat16()
    return product if bias is None else product + bias


def drawn_weights(num_outputs: int, size: int) -> list[RowScaledWeight | BlockScaledWeight]:
    """Return a row-scaled weight, one scaled by blocks, and one whose rows do not begin at a block."""
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(num_outputs, size, generator=generator).to(E4M3)
    scales = torch.rand(num_outputs, size // 128, generator=generator) + 0.5
    blocks = [(torch.arange(num_outputs) + first) // 128 for first in (0, 80)]
    return [
        RowScaledWeight(values, scales[:, :1].contiguous()),
        *(BlockScaledWeight.of(values, scales[block].contiguous()) for block in blocks),
    ]


def test_matrices_describe_the_scales_of_every_weight() -> None:
    """The kernel's view of a weight, dequantised, equals the product of its parts."""
    for weight in drawn_weights(272, 384):
        matrix = weight.matrix
        x = torch.eye(384).bfloat16()
        spread = matrix.scales.repeat_interleave(matrix.tile_rows, 0)[:272]
        spread = spread.repeat_interleave(matrix.tile_columns, 1)[:, :384]
        expected = matrix.values[:272].double() * spread
        torch.testing.assert_close(exact_product(x, matrix).T, expected, rtol=1e-6, atol=0)
    rows, blocks, unaligned = drawn_weights(272, 384)
    assert (rows.matrix.tile_rows, rows.matrix.tile_columns) == (1, 384)
    assert (blocks.matrix.tile_rows, blocks.matrix.tile_columns) == (128, 128)
    assert (unaligned.matrix.tile_rows, unaligned.matrix.tile_columns) == (1, 128)


def test_a_kernel_is_used_only_if_its_results_are_right(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(x: Tensor, weight: ScaledMatrix, bias: Tensor | None) -> Tensor:
        return exact(x, weight, bias) * 1.1

    def missing() -> module.Product:
        raise ImportError("No module named 'triton'")

    with caplog.at_level(logging.WARNING):
        for has_whole_rows in (False, True):
            monkeypatch.setattr(module, "load_kernel", lambda: exact)
            assert tried_kernel(CPU, has_whole_rows) is exact
            assert not caplog.messages
            monkeypatch.setattr(module, "load_kernel", lambda: wrong)
            assert tried_kernel(CPU, has_whole_rows) is None
            monkeypatch.setattr(module, "load_kernel", missing)
            assert tried_kernel(CPU, has_whole_rows) is None
            first = "FP8 products of few tokens are torch's, since Triton does not work here: "
            assert caplog.messages == [
                first + "ArithmeticError: its results are wrong",
                first + "ImportError: No module named 'triton'",
            ]
            caplog.clear()


@pytest.mark.parametrize(("capability", "expected"), [((8, 9), None), ((9, 0), exact), ((10, 0), None)])
def test_only_hopper_gpus_get_the_kernel(
    capability: tuple[int, int], expected: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(module, "tried_kernel", lambda device, has_whole_rows: exact)
    find = module.product_kernel.__wrapped__
    assert find(torch.device("cuda"), True) is expected
    assert find(CPU, True) is None


def test_weights_use_the_kernel_and_otherwise_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    x, bias = torch.ones(2, 384).bfloat16(), torch.ones(272).bfloat16()
    assert few_token_product(x, drawn_weights(272, 384)[0].matrix, bias) is None  # on a CPU
    for weight in drawn_weights(272, 384):
        monkeypatch.setattr(fp8_weight, "few_token_product", exact)
        assert torch.equal(weight(x, bias), exact(x, weight.matrix, bias))
        monkeypatch.setattr(fp8_weight, "few_token_product", lambda x, weight, bias: None)
        monkeypatch.setattr(type(weight), "torch_product", lambda self, x, bias: "torch's")
        assert weight(x, bias) == "torch's"


# Triton's interpreter does not convert to and from e4m3 as GPUs do, so torch does.
IN_TRITON = """
import itertools
import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

convert = interpreter._convert_float


def convert_as_gpus_do(values, from_dtype, to_dtype, rounding):
    values = np.ascontiguousarray(values)
    if to_dtype == tl.float8e4nv:
        return torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    if from_dtype == tl.float8e4nv:
        assert to_dtype == tl.float16
        return torch.from_numpy(values.view(np.uint8)).view(torch.float8_e4m3fn).to(torch.float16).numpy()
    return convert(values, from_dtype, to_dtype, rounding)


interpreter._convert_float = convert_as_gpus_do
from baton.engine.layers.fp8_tokens.product import exact_product
from baton.engine.layers.fp8_tokens.product_triton import Tiling, product
from baton.engine.layers.weights.fp8_weight import BlockScaledWeight, RowScaledWeight
from tests.unit.engine.layers.test_fp8_product import drawn_weights


def draw(num_tokens, size):
    x = torch.randn(num_tokens, size + 128, generator=torch.Generator().manual_seed(size)).bfloat16()
    x = x[:, :size]  # rows that are not next to each other
    x[:, 1] = 63.0  # so that some quotients are halfway between two numbers of e4m3
    return x * torch.logspace(-3, 3, num_tokens).bfloat16()[:, None]


def check(x, weight, bias, tiling=None):
    found, expected = product(x, weight, bias, tiling), exact_product(x, weight)
    roundings = 2**-6 * expected.abs()
    if bias is not None:
        expected = expected + bias.double()
        roundings += 2**-6 * expected.abs()
    assert found.shape == expected.shape and found.dtype == torch.bfloat16
    assert not found.isnan().any()
    largest = expected.abs().amax(1, keepdim=True)
    assert ((found.double() - expected).abs() <= roundings + 1e-5 * largest).all(), tiling


tilings = [Tiling(16, 8, 4), Tiling(32, 4, 3), Tiling(32, 2, 3), Tiling(64, 1, 3), None]
counts = itertools.cycle([1, 8, 5, 3, 7, 2])
for num_outputs, size in ((272, 1152), (48, 128), (16, 640), (144, 2048)):
    for number, weight in enumerate(drawn_weights(num_outputs, size)):
        for tiling in tilings:
            bias = torch.randn(num_outputs).bfloat16() if tiling is None else None
            check(draw(next(counts), size), weight.matrix, bias, tiling)
narrow = RowScaledWeight(torch.randn(48, 272).to(torch.float8_e4m3fn), torch.rand(48, 1) + 0.5)
check(draw(3, 272), narrow.matrix, None)

# Times the identity, tokens show each element's rounding. Scales of multiples of 7 make quotients that are halfway
# between two numbers of e4m3; the error of one is 3% at least.
identity = torch.eye(256).to(torch.float8_e4m3fn)
ones = RowScaledWeight(identity, torch.ones(256, 1)), BlockScaledWeight.of(identity, torch.ones(256, 2))
numbers = torch.arange(128, 256).repeat(2) * 2.0 ** torch.arange(-4, 0).repeat(64)
for first in range(133, 256, 56):
    peaks = torch.arange(first, min(first + 56, 256), 7)[:, None].float()
    x = torch.minimum(numbers.expand(len(peaks), -1), peaks).bfloat16()
    x[:, ::128] = peaks.bfloat16()
    for each in ones:
        found, expected = product(x, each.matrix, None), exact_product(x, each.matrix)
        assert ((found.double() - expected).abs() <= 2**-7 * expected.abs()).all()

x, weight = torch.zeros(5, 256).bfloat16(), drawn_weights(32, 256)
x[1, 3], x[2, 200], x[3, 0], x[4] = torch.nan, torch.inf, -torch.inf, 1e-38
for each in weight:
    found = product(x, each.matrix, None)
    assert found[0].eq(0).all() and not found[1:4].isfinite().any() and found[4].isfinite().all()
print("equal")
"""

# What a GPU executes, without a GPU: wide asynchronous loads, products with sums in fp32, exact conversions.
FOR_HOPPER = """
import re
import subprocess
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from baton.engine.layers.fp8_tokens.product import MOST_TOKENS
from baton.engine.layers.fp8_tokens.product_triton import COLUMNS, _product, tiling_of

names = _product.arg_names
pointers = {"tokens": "*bf16", "values": "*fp8e4nv", "scales": "*fp32", "bias": "*bf16", "result": "*bf16"}
integers = dict.fromkeys(("num_tokens", "num_outputs", "size", "token_stride", "row_stride", "column_stride"), "i32")
memory, file = 227 * 1024, sys.argv[1] + "/product.ptx"
for tiling in sorted({tiling_of(rows) for rows in (6144, 4096, 24576, 1024)}, key=str):
    for is_blocked in (False, True):
        sizes = {
            "IS_BLOCKED": is_blocked, "ROWS_A_SCALE": 128 if is_blocked else 1, "HAS_BIAS": False,
            "TOKENS": MOST_TOKENS, "COLUMNS": COLUMNS,
            "ROWS": tiling.rows, "WARPS": tiling.warps, "STAGES": tiling.stages,
        }
        signature = pointers | integers | dict.fromkeys(sizes, "constexpr")
        aligned = [*pointers, "num_outputs", "size", "token_stride"]
        constants = {(names.index(name),): size for name, size in sizes.items()}
        divisible = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
        source = ASTSource(_product, signature, constants, divisible)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": tiling.warps})
        assert compiled.metadata.shared <= memory, (tiling, compiled.metadata.shared)
        ptx = compiled.asm["ptx"]
        expected = (
            "cp.async.cg.shared.global [", ", 0x10", "cp.async.wait_group", "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "cvt.rn.f16x2.e4m3x2", "fma.rn.f32",
            "cvt.rn.satfinite.e4m3x2.f32", "div.rn.f32",
        )
        assert all(each in ptx for each in expected), [each for each in expected if each not in ptx]
        assert not re.search(r"mul\\.ftz|div\\.full|fma\\.rn\\.ftz", ptx)
        with open(file, "w") as out:
            out.write(ptx)
        command = [get_ptxas(90).path, "-v", "-arch=sm_90a", file, "-o", file + ".cubin"]
        report = subprocess.run(command, capture_output=True, text=True).stderr
        spilled = [int(count) for count in re.findall(r"(\\d+) bytes spill", report)]
        assert len(spilled) == 2 and max(spilled) <= 16, (tiling, report)
print("compiled")
"""


@pytest.mark.slow
def test_the_triton_kernel_matches_exact_products() -> None:
    """Run Triton's interpreter in a subprocess, since it must be selected before Triton is imported."""
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
    run = run_python(IN_TRITON, TRITON_INTERPRET="1")
    assert run.stdout == "equal\n", run.stderr


@pytest.mark.slow
def test_the_triton_kernel_compiles_for_hopper(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="Triton comes with torch for GPUs")
    program = f"import sys\nsys.argv = ['', {str(tmp_path)!r}]\n{FOR_HOPPER}"
    run = run_python(program, TRITON_CACHE_DIR=str(tmp_path))
    assert run.stdout == "compiled\n", run.stderr
