"""Native products with weights in groups, compared with the dequantised weight, for every instruction set."""

import numpy as np
import pytest
import torch

pytest.importorskip("baton.engine.native.grouped_products", reason="nothing was compiled when this was installed")

from baton.engine.checkpoint.gguf.types import TYPES
from baton.engine.checkpoint.packed.gguf_layout import GgufLayout
from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix, e2m1_table
from baton.engine.checkpoint.packed.stored_layout import Wanted
from baton.engine.layers.weights.native_groups import NativeGroups, has_native_product
from baton.engine.native.grouped_products import GroupedProduct, instruction_sets

ROWS, COLUMNS = 37, 512
INSTRUCTIONS = pytest.mark.parametrize("instructions", instruction_sets())


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def codes(*shape: int, most: int = 256, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, most, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def gguf(name: str) -> GroupedMatrix:
    """Blocks of random bytes, with scales that are not too large."""
    kind = next(each for each in TYPES.values() if each.name == name)
    raw = codes(ROWS, COLUMNS // kind.elements, kind.num_bytes).numpy()
    places = {"Q6_K": (208,), "MXFP4": ()}.get(name, (0, 2) if name[-1] in "K1" else (0,))
    for place in places:
        scales = drawn(ROWS, COLUMNS // kind.elements, 1, seed=place).half().numpy()
        raw[:, :, place : place + 2] = scales.view(np.uint8).reshape(*raw.shape[:2], 2)
    if name == "MXFP4":
        raw[:, :, 0] = 120 + raw[:, :, 0] % 8
    stored = torch.from_numpy(raw.reshape(ROWS, -1))
    return GgufLayout(kind).read({".weight": stored}, Wanted("m", ROWS, COLUMNS, slice(0, ROWS), slice(0, COLUMNS)))


def simple(bits: int, width: int, scale_dtype: torch.dtype, zeros: torch.Tensor | None = None) -> GroupedMatrix:
    low = codes(ROWS, COLUMNS if bits == 8 else COLUMNS // 2, seed=bits)
    scales = drawn(ROWS, COLUMNS // width).to(scale_dtype)
    return GroupedMatrix(low=low, bits=bits, scales=scales, zeros=zeros)


def ordered() -> GroupedMatrix:
    groups = (torch.arange(COLUMNS) // 64)[torch.randperm(COLUMNS, generator=torch.Generator().manual_seed(1))]
    scales, zeros = drawn(ROWS, 8).half(), codes(ROWS, 8, most=17)
    return GroupedMatrix(low=codes(ROWS, COLUMNS // 2), bits=4, scales=scales, zeros=zeros, groups=groups.int())


CASES = {
    **{name: lambda name=name: gguf(name) for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")},
    "MXFP4": lambda: gguf("MXFP4"),
    "fp16-whole": lambda: simple(4, COLUMNS, torch.float16, codes(ROWS, 1, most=17)),
    "bf16-128": lambda: simple(4, 128, torch.bfloat16, codes(ROWS, 4, most=16)),
    "fp32-8": lambda: simple(8, 64, torch.float32, codes(ROWS, 8).to(torch.int16)),
    "nvfp4": lambda: GroupedMatrix(
        low=codes(ROWS, COLUMNS // 2),
        bits=4,
        scales=drawn(ROWS, COLUMNS // 16).to(torch.float8_e4m3fn),
        outer_scales=torch.full((ROWS, 1), 0.37),
        table=e2m1_table(),
    ),
    "order": ordered,
}


@INSTRUCTIONS
@pytest.mark.parametrize("name", CASES)
def test_weights_are_decoded_exactly(name: str, instructions: str) -> None:
    matrix = CASES[name]()
    assert has_native_product(matrix, torch.float32)
    native = NativeGroups(matrix, instructions)
    assert torch.equal(native.decoded(), matrix.dequantised(slice(0, ROWS), torch.float32))


@INSTRUCTIONS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "bf16-128", "fp32-8", "order"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_products_agree_with_torchs(name: str, dtype: torch.dtype, instructions: str, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        matrix = CASES[name]()
        native, x, bias = NativeGroups(matrix, instructions), drawn(70, COLUMNS).to(dtype), drawn(ROWS).to(dtype)
        whole = native(x, bias)
        exact = matrix.dequantised(slice(0, ROWS), torch.float32).double()
        expected = x.double() @ exact.T + bias.double()
        assert whole.dtype == dtype
        error = (whole.double() - expected).norm() / expected.norm()
        assert error < (1e-6 if dtype == torch.float32 else 3e-3)
        for first, count in ((0, 0), (0, 1), (3, 2), (5, 7), (2, 65)):
            assert torch.equal(native(x[first : first + count], bias), whole[first : first + count])
        assert torch.equal(native(torch.cat([x, x], 1)[:, :COLUMNS], bias), whole)  # rows that are not contiguous
        assert torch.equal(NativeGroups(matrix, "plain")(x, bias), whole)  # all instruction sets add in the same order
    finally:
        torch.set_num_threads(before)


def test_other_matrices_have_no_native_product() -> None:
    matrix = simple(4, 64, torch.float32)
    assert not has_native_product(matrix, torch.float16)
    assert not has_native_product(simple(4, 8, torch.float32), torch.float32)  # groups of 8
    uneven = GroupedMatrix(low=codes(4, 32), bits=4, scales=torch.ones(4, 2), groups=torch.tensor([0] * 30 + [1] * 34))
    assert not has_native_product(uneven, torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instructions": "sse9"}, "does not have that instruction set"),
        ({"num_inputs": 40}, "multiples of 32"),
        ({"bits": 3}, "4, 5, 6 or 8 bits"),
        ({"bits": 5}, "upper bits"),
        ({"bits": 8, "is_e2m1": True}, "E2M1 has 4 bits"),
        ({"scales": None}, "have scales"),
        ({"scales": (64, 0, 3)}, "multiples of 16"),
        ({"scales": (64, 9, 1)}, "a kind"),
        ({"outer_minima": (64, 0, 1)}, "groups of groups"),
    ],
)  # fmt: skip
def test_invalid_weights_are_refused(change: dict[str, object], message: str) -> None:
    usual: dict[str, object] = {
        "instructions": "plain", "low": 64, "high": 0, "bits": 4, "is_e2m1": False, "num_outputs": 1, "num_inputs": 64,
        "scales": (64, 0, 1), "outer_scales": None, "zeros": None, "minima": None, "outer_minima": None, "order": 0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        GroupedProduct(**(usual | change))  # type: ignore[arg-type]
