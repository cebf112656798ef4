"""Layer ops of the device's backend compared with torch in fp32 on the same device."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from baton.engine.activation import Activation
from baton.engine.ops.base import HeadNorms, LayerOps, Rotation
from baton.engine.ops.factory import ops_for
from baton.engine.ops.flashinfer_ops import FlashInferOps
from baton.engine.ops.torch_ops import TorchOps
from benchmarks.gpu.numerics.closeness import OPERATION
from benchmarks.gpu.stage import Record, Setting

EPS = 1e-6
NUM_POSITIONS = 40960
WIDTHS = (64, 1024, 4096, 7168)
HEADS = ((8, 64, False), (40, 128, False), (10, 256, False), (16, 64, True))  # heads, width, interleaved
NUM_TOKENS = (1, 7, 257, 2048)


@dataclass(frozen=True, slots=True)
class Case:
    """An op with fixed inputs, which returns the tensor to compare."""

    name: str
    call: Callable[[LayerOps, torch.dtype], Tensor]


def check_ops(record: Record, setting: Setting, ops: LayerOps) -> None:
    """Compare `ops` in the setting's dtype with TorchOps in fp32 on the same, already rounded, inputs."""
    reference, dtype = TorchOps(), setting.dtype
    for num_tokens in NUM_TOKENS[:2] if setting.is_quick else NUM_TOKENS:
        for case in (*row_cases(setting, num_tokens), *rotation_cases(setting, num_tokens)):
            expected = case.call(reference, torch.float32)
            record.compare(f"{case.name} of {num_tokens} tokens", case.call(ops, dtype), expected, OPERATION[dtype])


def row_cases(setting: Setting, num_tokens: int) -> list[Case]:
    """Return cases for norms, the gated activation, and int8 quantisation."""
    cases: list[Case] = []
    for width in WIDTHS[:2] if setting.is_quick else WIDTHS:
        draw = drawer(setting, num_tokens + width)
        x, addend, weight = draw(num_tokens, width), draw(num_tokens, width), draw(width).abs_()
        gate_up, bias, heads = draw(num_tokens, 2 * width), draw(width), draw(num_tokens, 4, width)

        # Default arguments bind this iteration's values; inputs that may be overwritten are copied.
        def norm(ops: LayerOps, dtype: torch.dtype, x: Tensor = x, weight: Tensor = weight) -> Tensor:
            return ops.rms_norm(x.to(dtype, copy=True), weight.to(dtype), EPS)

        def norm_heads(ops: LayerOps, dtype: torch.dtype, heads: Tensor = heads, weight: Tensor = weight) -> Tensor:
            return ops.rms_norm(heads.to(dtype, copy=True)[:, 1:3], weight.to(dtype), EPS)

        def add_norm(
            ops: LayerOps, dtype: torch.dtype, x: Tensor = x, addend: Tensor = addend, weight: Tensor = weight
        ) -> tuple[Tensor, Tensor]:
            return ops.add_rms_norm(x.to(dtype, copy=True), addend.to(dtype, copy=True), weight.to(dtype), EPS)

        def offset_norm(ops: LayerOps, dtype: torch.dtype, x: Tensor = x, weight: Tensor = weight) -> Tensor:
            return ops.rms_norm(x.to(dtype, copy=True), weight.to(dtype), EPS, 1.0)

        def add_offset_norm(
            ops: LayerOps, dtype: torch.dtype, x: Tensor = x, addend: Tensor = addend, weight: Tensor = weight
        ) -> Tensor:
            return ops.add_rms_norm(x.to(dtype, copy=True), addend.to(dtype, copy=True), weight.to(dtype), EPS, 1.0)[1]

        def activate(
            ops: LayerOps, dtype: torch.dtype, gate_up: Tensor = gate_up, activation: Activation = "silu"
        ) -> Tensor:
            return ops.gate_and_mul(gate_up.to(dtype, copy=True), activation)

        def requantise(ops: LayerOps, dtype: torch.dtype, x: Tensor = x, bias: Tensor = bias) -> Tensor:
            rounded, scales = ops.quantise(x.to(dtype))
            return ops.scale(rounded.to(dtype) - 128, scales, bias.to(dtype))

        cases += [
            Case(f"rms_norm {width}", norm),
            Case(f"rms_norm of heads {width}", norm_heads),
            Case(f"add_rms_norm {width}: sum", lambda *arguments, call=add_norm: call(*arguments)[0]),
            Case(f"add_rms_norm {width}: norm", lambda *arguments, call=add_norm: call(*arguments)[1]),
            Case(f"rms_norm with an offset {width}", offset_norm),
            Case(f"add_rms_norm with an offset {width}", add_offset_norm),
            *(Case(f"{each} {width}", partial(activate, activation=each)) for each in get_args(Activation)),
            Case(f"quantise and scale {width}", requantise),
        ]
    return cases


def rotation_cases(setting: Setting, num_tokens: int) -> list[Case]:
    """Return cases for rotary embeddings at random positions, with and without norms."""
    cases: list[Case] = []
    for num_heads, width, interleaved in HEADS[::3] if setting.is_quick else HEADS:
        draw = drawer(setting, num_tokens + width + interleaved)
        heads, angles = draw(num_tokens, num_heads, width), draw(NUM_POSITIONS, width // 2)
        table = torch.cat([angles.cos(), angles.sin()], dim=-1)
        rotation = table, torch.randint(NUM_POSITIONS, (num_tokens,), device=setting.device), interleaved
        counts = num_heads - num_heads // 4, num_heads // 4  # queries, keys
        each = [draw(1, width).abs_().expand(count, width) for count in counts]
        for weight in (None, torch.cat(each)):

            def rotate(
                ops: LayerOps,
                dtype: torch.dtype,
                heads: Tensor = heads,
                rotation: tuple[Tensor, Tensor, bool] = rotation,
                weight: Tensor | None = weight,
                counts: tuple[int, int] = counts,
            ) -> Tensor:
                norms = None if weight is None else HeadNorms(weight.to(dtype), counts, EPS)
                return ops.rotate(heads.to(dtype, copy=True), Rotation(*rotation), norms)

            kind = ("interleaved " if interleaved else "") + ("after norms " if weight is not None else "")
            cases.append(Case(f"rotate {kind}{num_heads} x {width}", rotate))
    return cases


def drawer(setting: Setting, seed: int) -> Callable[..., Tensor]:
    """Return a generator of fp32 tensors that are exact in the setting's dtype."""
    generator = torch.Generator(setting.device).manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=setting.device).to(setting.dtype).float()

    return draw


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    ops = ops_for(setting.device)
    record.note(f"{type(ops).__name__} serves {setting.device}")
    if setting.device.type == "cuda":
        record.find("FlashInfer's kernels serve", isinstance(ops, FlashInferOps), type(ops).__name__)
    check_ops(record, setting, ops)
