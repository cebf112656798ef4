"""The fused append of KV compared with torch in fp32, with torch in the same dtype, and with the separate kernels."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from baton.engine.attention import fp8_rows
from baton.engine.attention.kv_append import KVAppend, append_for, append_in_torch, is_appendable
from baton.engine.execution.cuda_graphs import CudaRecorder
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.ops.base import HeadNorms, Rotation
from baton.engine.ops.factory import ops_for
from benchmarks.gpu.numerics.closeness import OPERATION, Limits
from benchmarks.gpu.numerics.ops import EPS, NUM_POSITIONS, drawer
from benchmarks.gpu.stage import Record, Setting

NUM_TOKENS = (1, 7, 257, 2048)
NUM_LAYERS, LAYER = 2, 1  # the second of two layers, so that a wrong stride shows
ROUNDED_TO_FP8 = Limits(0.999, 0.02, 1.0)  # other last bits before, so a few elements are rounded to a neighbour


@dataclass(frozen=True, slots=True)
class Shape:
    """Heads of a model on one rank, what precedes their append, and their blocks."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    width: int  # of the rotation
    norm_offset: float | None = None  # None: no norms
    interleaved: bool = False
    num_parts: int = 1
    block_size: int = 16

    def __str__(self) -> str:
        names = [f"{self.num_heads} / {self.num_kv_heads} of {self.head_dim}"]
        names += [f"{self.width} rotated"] * (self.width < self.head_dim) + ["interleaved"] * self.interleaved
        names += [] if self.norm_offset is None else [f"norms + {self.norm_offset:g}"]
        return ", ".join((*names, f"{self.num_parts} parts" if self.num_parts > 1 else f"blocks of {self.block_size}"))


SHAPES = (
    Shape(32, 8, 128, 128, 0.0),  # Qwen3-8B
    Shape(32, 8, 128, 128, num_parts=2),
    Shape(28, 4, 128, 128, block_size=32),
    Shape(24, 8, 128, 96, num_parts=8),
    Shape(32, 2, 128, 64, interleaved=True, block_size=32),
    Shape(14, 2, 64, 64),
    Shape(8, 4, 256, 256, 1.0),  # Gemma 3
    Shape(16, 2, 256, 64, 1.0, num_parts=2),
)


@dataclass(frozen=True, slots=True)
class Step:
    """Arguments of an append of one layer, without its cache; numbers are exact in the setting's dtype."""

    heads: Tensor  # [num_tokens, num_heads + 2 * num_kv_heads, head_dim], with a gap after each token
    num_heads: int
    rotation: Rotation
    norms: HeadNorms | None
    slots: Tensor
    scales: KVScales

    @classmethod
    def draw(cls, shape: Shape, num_tokens: int, num_blocks: int, setting: Setting, scales: KVScales) -> "Step":
        """Draw a step whose tokens are in random slots."""
        draw, device, dtype = drawer(setting, num_tokens), setting.device, setting.dtype
        counts = (shape.num_heads, shape.num_kv_heads)
        angles = 6 * draw(NUM_POSITIONS, shape.width // 2)
        positions = torch.randint(NUM_POSITIONS, (num_tokens,), device=device)
        norms = None
        if shape.norm_offset is not None:
            each = [draw(1, shape.head_dim).abs_().expand(count, -1) for count in counts]
            norms = HeadNorms(torch.cat(each).to(dtype), counts, EPS, shape.norm_offset)
        return cls(
            heads=draw(num_tokens, sum(counts) + counts[1] + 1, shape.head_dim).to(dtype)[:, :-1],
            num_heads=shape.num_heads,
            rotation=Rotation(torch.cat([angles.cos(), angles.sin()], dim=1), positions, shape.interleaved),
            norms=norms,
            slots=torch.randperm(num_blocks * shape.block_size, device=device)[:num_tokens],
            scales=scales,
        )

    def float(self) -> "Step":
        """Return the same in fp32."""
        norms = self.norms and HeadNorms(
            self.norms.weight.float(), self.norms.counts, self.norms.eps, self.norms.offset
        )
        return Step(self.heads.float(), self.num_heads, self.rotation, norms, self.slots, UNSCALED)

    def append(self, append: KVAppend, pool: Tensor) -> Tensor:
        """Append to a layer of the pool and return the queries."""
        cache = KVCacheLayout.layer_cache(pool, LAYER)
        return append(self.heads, self.num_heads, self.rotation, self.norms, cache, self.slots, self.scales)


def check_append(
    record: Record, setting: Setting, append: KVAppend, shape: Shape, cached: torch.dtype, num_tokens: int
) -> None:
    """Compare queries, keys and values, and what the append must not change."""
    name, is_fp8 = f"{shape}, KV {str(cached).removeprefix('torch.')}, {num_tokens} tokens", cached == fp8_rows.DTYPE
    num_blocks = 2 + num_tokens // shape.block_size
    heads_per_part = shape.num_kv_heads // shape.num_parts
    sizes = (num_blocks, shape.num_parts, NUM_LAYERS, 2, heads_per_part, shape.block_size, shape.head_dim)
    step = Step.draw(shape, num_tokens, num_blocks, setting, KVScales(0.5, 0.25) if is_fp8 else UNSCALED)
    pool = torch.zeros(sizes, device=setting.device).to(cached)
    if setting.device.type == "cuda":
        cache = KVCacheLayout.layer_cache(pool, LAYER)
        served = is_appendable(step.heads, step.num_heads, step.rotation, step.norms, cache)
        record.find(f"{name}: served", served, "by the kernel" if served else "not by the kernel")
    in_torch, exact = pool.clone(), pool.to(torch.float32, copy=True)
    queries = step.append(append, pool)
    step.append(append_in_torch, in_torch)
    expected = step.float().append(append_in_torch, exact)
    record.compare(f"{name}: queries", queries, expected, OPERATION[setting.dtype])
    ours, theirs = pool[:, :, LAYER, 0].float(), in_torch[:, :, LAYER, 0].float()
    record.compare(f"{name}: keys", ours, theirs, ROUNDED_TO_FP8 if is_fp8 else OPERATION[setting.dtype])
    if not is_fp8:
        record.compare(f"{name}: keys in fp32", ours, exact[:, :, LAYER, 0], OPERATION[setting.dtype])
    qk = step.heads[:, : shape.num_heads + shape.num_kv_heads].clone()
    separate = ops_for(setting.device).rotate(qk, step.rotation, step.norms)[:, : shape.num_heads]
    record.compare(f"{name}: separate kernels", queries, separate.float(), OPERATION[setting.dtype])
    all_bytes, expected_bytes = pool.view(torch.uint8), in_torch.view(torch.uint8)
    all_bytes[:, :, LAYER, 0] = expected_bytes[:, :, LAYER, 0]
    is_same = torch.equal(all_bytes, expected_bytes)
    record.find(f"{name}: values and the rest", is_same, "equal in every bit" if is_same else "other bits")


def check_replay(record: Record, setting: Setting, append: KVAppend) -> None:
    """Record an append in a CUDA graph, and replay it with other heads, positions and slots in the same memory."""
    shape, num_tokens, num_blocks = SHAPES[0], 8, 6
    sizes = (num_blocks, 1, NUM_LAYERS, 2, shape.num_kv_heads, shape.block_size, shape.head_dim)
    pool = torch.zeros(sizes, dtype=setting.dtype, device=setting.device)
    step = Step.draw(shape, num_tokens, num_blocks, setting, UNSCALED)
    queries = torch.empty(num_tokens, shape.num_heads, shape.head_dim, dtype=setting.dtype, device=setting.device)
    replay = CudaRecorder().record(lambda: queries.copy_(step.append(append, pool)))
    step.heads.copy_(step.heads.flip(0))
    step.rotation.positions.copy_(torch.arange(num_tokens, device=setting.device))
    step.slots.copy_(torch.arange(5, 5 + num_tokens, device=setting.device) * 7)
    pool.zero_()
    replay()
    in_torch = torch.zeros_like(pool)
    record.compare(
        "replayed: queries", queries, step.append(append_in_torch, in_torch).float(), OPERATION[queries.dtype]
    )
    record.compare("replayed: KV", pool, in_torch.float(), OPERATION[queries.dtype])


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    is_gpu = setting.device.type == "cuda"
    for cached in (setting.dtype, fp8_rows.DTYPE):
        append = append_for(setting.device, setting.dtype, cached)
        if is_gpu:
            record.find(f"a kernel serves KV {cached}", append is not None, "see the log if not")
        for shape in SHAPES[::3] if setting.is_quick else SHAPES:
            for num_tokens in NUM_TOKENS[:2] if setting.is_quick else NUM_TOKENS:
                check = partial(check_append, record, setting, append or append_in_torch, shape, cached, num_tokens)
                record.attempt(f"{shape}, KV {cached}, {num_tokens} tokens", check)
        if is_gpu and append is not None and cached == setting.dtype:
            record.attempt("replayed", partial(check_replay, record, setting, append))
