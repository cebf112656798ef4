"""GPTQ and AWQ checkpoints, and the same numbers dequantised, written out by the formats' packing rules."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.unit.engine.fp8_writer import MATRICES

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the output whose code is the n-th of a word
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantised matrix: `scales[group] * (codes - zeros[group])`, group by column."""

    codes: Tensor  # [rows, columns] int64
    scales: Tensor  # [rows, groups]
    zeros: Tensor  # [rows, groups] int64
    groups: Tensor  # [columns]

    @property
    def exact(self) -> Tensor:
        zeros, scales = self.zeros[:, self.groups], self.scales.float()[:, self.groups]
        return (self.codes - zeros).float() * scales


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """Storage format of packed matrices."""

    config: dict[str, Any]
    pack: Callable[[Codes, "PackedFormat"], Tensors]  # to tensors by suffix
    convert: Callable[[Tensor], tuple[Tensors, Tensor]] | None = None  # of a matrix to tensors and dequantised numbers
    bits: int = 4
    group: int = 32  # -1: whole columns
    symmetric: bool = False
    act_order: bool = False
    scale_dtype: torch.dtype = torch.float16
    plain: tuple[str, ...] = ()  # parts of names of matrices that are not quantised
    other: dict[str, dict[str, Any]] = field(default_factory=dict)  # other fields, by part of a name
    matrices: tuple[str, ...] = MATRICES
    more: dict[str, Any] = field(default_factory=dict)  # changes of config.json


def quantised(matrix: Tensor, fmt: PackedFormat, seed: int = 0) -> Codes:
    """Round to the nearest code between each group's smallest and largest number."""
    rows, columns = matrix.shape
    width = columns if fmt.group == -1 else fmt.group
    order = torch.randperm(columns, generator=torch.Generator().manual_seed(seed))
    groups = torch.arange(columns) // width
    if fmt.act_order:
        groups = groups[order]
    top = 2**fmt.bits - 1
    scales, zeros = torch.empty(rows, columns // width), torch.empty(rows, columns // width, dtype=torch.int64)
    for group in range(columns // width):
        part = matrix[:, groups == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if fmt.symmetric:
            scales[:, group] = part.abs().amax(1) * 2 / top
            zeros[:, group] = (top + 1) // 2
        else:
            scales[:, group] = (high - low) / top
            zeros[:, group] = (-low / scales[:, group]).round().clamp(1, top).long()
    scales = scales.to(fmt.scale_dtype)
    codes = (matrix / scales.float()[:, groups] + zeros[:, groups]).round().clamp(0, top).long()
    return Codes(codes, scales, zeros, groups)


def words(codes: Tensor, bits: int) -> Tensor:
    """Pack codes [n, length] along dimension 0 into int32 [n * bits / 32, length], the first lowest."""
    per_word = 32 // bits
    result = torch.zeros(len(codes) // per_word, codes.shape[1], dtype=torch.int64)
    for place in range(per_word):
        result |= codes[place::per_word] << (place * bits)
    return ((result + 2**31) % 2**32 - 2**31).to(torch.int32)


def gptq(offset: int) -> Callable[[Codes, PackedFormat], Tensors]:
    """offset: subtracted from stored zero points."""

    def pack(codes: Codes, fmt: PackedFormat) -> Tensors:
        return {
            ".qweight": words(codes.codes.T, fmt.bits),
            ".qzeros": words(codes.zeros - offset, fmt.bits).T.contiguous(),
            ".scales": codes.scales.T.contiguous(),
            ".g_idx": codes.groups.to(torch.int32),
        }

    return pack


def awq(codes: Codes, fmt: PackedFormat) -> Tensors:
    def interleaved(values: Tensor) -> Tensor:  # [outputs, length] to [length, outputs / 8]
        ordered = values.view(-1, 8, values.shape[1])[:, AWQ_ORDER].reshape(values.shape)
        return words(ordered, 4).T.contiguous()

    return {
        ".qweight": interleaved(codes.codes),
        ".qzeros": interleaved(codes.zeros),
        ".scales": codes.scales.T.contiguous(),
    }


def gptq_config(bits: int = 4, group: int = 32, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": False} | more


FORMATS = {
    "gptq": PackedFormat(gptq_config(), gptq(1)),
    "gptq-sym": PackedFormat(gptq_config(sym=True), gptq(1), symmetric=True, scale_dtype=torch.bfloat16),
    "gptq-v2": PackedFormat(gptq_config(checkpoint_format="gptq_v2"), gptq(0)),
    "gptq-order": PackedFormat(gptq_config(desc_act=True), gptq(1), act_order=True),
    "gptq-8": PackedFormat(gptq_config(bits=8, group=16), gptq(1), bits=8, group=16),
    "gptq-whole": PackedFormat(gptq_config(group=-1), gptq(1), group=-1),
    "gptq-mixed": PackedFormat(
        gptq_config(dynamic={r"-:.*\.v_proj": {}, r"+:.*\.up_proj": {"bits": 8, "group_size": 16}}),
        gptq(1),
        plain=("v_proj",),
        other={"up_proj": {"bits": 8, "group": 16}},
    ),
    "awq": PackedFormat(
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, awq
    ),
    "awq-plain": PackedFormat(
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 32, "modules_to_not_convert": ["o_proj"]},
        awq,
        plain=("o_proj",),
    ),
    "auto-round": PackedFormat(
        {
            "quant_method": "auto-round",
            "packing_format": "auto_round:auto_gptq",
            "bits": 4,
            "group_size": 32,
            "sym": True,
            "extra_config": {"model.layers.1.mlp.down_proj": {"bits": 16}},
        },
        gptq(1),
        symmetric=True,
        plain=("layers.1.mlp.down_proj",),
    ),
    "auto-round-awq": PackedFormat(
        {
            "quant_method": "intel/auto-round",
            "packing_format": "auto_round:auto_awq",
            "bits": 4,
            "group_size": 32,
            "sym": True,
        },
        awq,
        symmetric=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """Directories of a packed checkpoint, and of one in fp32 with the same numbers dequantised."""

    packed: Path
    exact: Path


def write_packed(source: Path, directory: Path, fmt: PackedFormat) -> Stored:
    """Write both checkpoints. source: a checkpoint in fp32 with one file."""
    stored = Stored(directory / "packed", directory / "exact")
    tensors = load_file(source / "model.safetensors")
    ours, exact = dict(tensors), dict(tensors)
    for seed, (name, matrix) in enumerate(tensors.items()):
        if not name.endswith(fmt.matrices) or any(part in name for part in fmt.plain):
            continue
        changes = next((value for part, value in fmt.other.items() if part in name), {})
        module = name.removesuffix(".weight")
        if fmt.convert is not None:
            del ours[name]
            converted, exact[name] = fmt.convert(matrix)
            ours |= {module + suffix: tensor.contiguous() for suffix, tensor in converted.items()}
            continue
        own = PackedFormat(**({key: getattr(fmt, key) for key in PackedFormat.__slots__} | changes))
        codes = quantised(matrix, own, seed)
        del ours[name]
        ours |= {module + suffix: tensor.contiguous() for suffix, tensor in own.pack(codes, own).items()}
        exact[name] = codes.exact
    config = json.loads((source / "config.json").read_text())
    write(source, stored.packed, ours, config | {"dtype": "float16", "quantization_config": fmt.config} | fmt.more)
    write(source, stored.exact, exact, config | {"dtype": "float32"})
    return stored


def write(source: Path, target: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    """Write a checkpoint with the other files of `source`."""
    shutil.copytree(source, target)
    (target / "config.json").write_text(json.dumps(config))
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
