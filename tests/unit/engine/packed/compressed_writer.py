"""Checkpoints of compressed-tensors, packed and dequantised by that library."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from tests.unit.engine.packed.packed_writer import Codes, PackedFormat, Tensors

compressors: Any = import_module("compressed_tensors.compressors")  # the library is untyped
quantization: Any = import_module("compressed_tensors.quantization")


def config(
    stored_as: str, weights: dict[str, Any], tokens: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": tokens}
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def packing(stored_as: str, weights: dict[str, Any]) -> Callable[[Codes, PackedFormat], Tensors]:
    def pack(codes: Codes, fmt: PackedFormat) -> Tensors:
        scheme = quantization.QuantizationScheme(
            targets=["Linear"], weights=quantization.QuantizationArgs(**(weights | {"actorder": None}))
        )
        # The library assigns columns to groups before it compresses.
        state = {"weight": codes.exact, "weight_scale": codes.scales}
        if not fmt.symmetric:
            state["weight_zero_point"] = (codes.zeros - 2 ** (fmt.bits - 1)).to(torch.int8)
        order = codes.groups.argsort(stable=True)
        sorted_state = compressor(stored_as).compress(state | {"weight": codes.exact[:, order]}, scheme)
        restored = compressor(stored_as).decompress(sorted_state, scheme)["weight"]
        assert torch.equal(restored, codes.exact[:, order])
        if fmt.act_order:
            plain = quantization.QuantizationArgs(num_bits=fmt.bits, strategy="channel", symmetric=True)
            ints = (codes.codes - 2 ** (fmt.bits - 1)).float()
            whole = {"weight": ints, "weight_scale": torch.ones(len(ints), 1)}
            in_place = compressor(stored_as).compress(
                whole, quantization.QuantizationScheme(targets=["Linear"], weights=plain)
            )
            sorted_state["weight_packed"] = in_place["weight_packed"]
            sorted_state["weight_g_idx"] = codes.groups.to(torch.int32)
        return {f".{name}": tensor for name, tensor in sorted_state.items()}

    return pack


def compressor(stored_as: str) -> Any:
    return compressors.BaseCompressor.get_value_from_registry(stored_as)


def of(stored_as: str, weights: dict[str, Any], tokens: dict[str, Any] | None = None) -> PackedFormat:
    group = weights.get("group_size") or -1
    return PackedFormat(
        config(stored_as, weights, tokens),
        packing(stored_as, weights),
        bits=weights["num_bits"],
        group=group,
        symmetric=weights["symmetric"],
        act_order="actorder" in weights,
        scale_dtype=torch.float32,
    )


def ints(bits: int, *, symmetric: bool = True, group: int | None = None, **more: Any) -> dict[str, Any]:
    strategy = {"strategy": "channel"} if group is None else {"strategy": "group", "group_size": group}
    return {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False} | strategy | more


TOKENS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
FORMATS = {
    "w4a16": of("pack-quantized", ints(4, group=32)),
    "w4a16-asym": of("pack-quantized", ints(4, symmetric=False, group=32)),
    "w4a16-order": of("pack-quantized", ints(4, symmetric=False, group=32, actorder="group")),
    "w4a16-channel": of("pack-quantized", ints(4)),
    "w8a16": of("pack-quantized", ints(8, group=16)),
    "w8a16-asym": of("pack-quantized", ints(8, symmetric=False)),
    "w8a8": of("int-quantized", ints(8), TOKENS),
    "w8a8-asym": of("int-quantized", ints(8, symmetric=False), TOKENS | {"strategy": "tensor", "dynamic": False}),
}  # fmt: skip


def fp4(matrix: Tensor, stored_as: str) -> tuple[Tensors, Tensor]:
    """Return a matrix in NVFP4 or MXFP4, and the same numbers in fp32."""
    is_nv = stored_as.startswith("nvfp4")
    width = 16 if is_nv else 32
    largest = matrix.view(len(matrix), -1, width).abs().amax(2)
    state = {"weight": matrix}
    args = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": width}
    if is_nv:
        state["weight_global_scale"] = (448.0 * 6.0 / matrix.abs().amax()).reshape(1)
        state["weight_scale"] = (largest * state["weight_global_scale"] / 6).to(torch.float8_e4m3fn).float()
        args |= {"strategy": "tensor_group", "scale_dtype": torch.float8_e4m3fn}
    else:
        state["weight_scale"] = 2.0 ** (largest / 6).log2().ceil()
        args |= {"strategy": "group", "scale_dtype": torch.uint8}
    scheme = quantization.QuantizationScheme(targets=["Linear"], weights=quantization.QuantizationArgs(**args))
    packed = compressor(stored_as).compress(state, scheme)
    unpack = compressors.nvfp4.helpers.unpack_fp4_from_uint8
    values = unpack(packed["weight_packed"], *matrix.shape, dtype=torch.float32)
    scales = state["weight_scale"] / state.get("weight_global_scale", 1.0)  # the library rounds the result to bf16
    exact = values * scales.repeat_interleave(width, 1)
    torch.testing.assert_close(
        compressor(stored_as).decompress(dict(packed), scheme)["weight"].float(), exact, atol=0, rtol=2**-6
    )
    return {f".{name}": tensor for name, tensor in packed.items()}, exact


def _fp4_format(stored_as: str, **weights: Any) -> PackedFormat:
    described = config(stored_as, {"num_bits": 4, "type": "float", "symmetric": True} | weights)

    def unused(codes: Codes, fmt: PackedFormat) -> Tensors:
        raise NotImplementedError

    return PackedFormat(described, unused, convert=lambda matrix: fp4(matrix, stored_as))


FORMATS |= {
    "nvfp4": _fp4_format("nvfp4-pack-quantized", strategy="tensor_group", group_size=16),
    "mxfp4": _fp4_format("mxfp4-pack-quantized", strategy="group", group_size=32),
}
