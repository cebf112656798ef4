"""Random heads, norms, rotations and strided caches for the fused append of KV, and the check of Triton's kernel."""

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.engine.attention import fp8_rows
from baton.engine.attention.kv_append import KVAppend, append_in_torch, is_appendable
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.ops.base import HeadNorms, Rotation

NUM_LAYERS, LAYER = 2, 1
NUM_BLOCKS, NUM_POSITIONS = 6, 40
NUM_CASES = 14


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments of an append, and a pool of several layers."""

    heads: Tensor
    num_heads: int
    rotation: Rotation
    norms: HeadNorms | None
    slots: Tensor
    pool: Tensor  # [num_blocks, parts, num_layers, 2, heads per part, block_size, head_dim]
    scales: KVScales = UNSCALED

    def appended(self, append: KVAppend) -> tuple[Tensor, Tensor]:
        """Append to one layer of a copy of the pool; return the queries and the copy."""
        pool = self.pool.clone()
        cache = KVCacheLayout.layer_cache(pool, LAYER)
        assert is_appendable(self.heads, self.num_heads, self.rotation, self.norms, cache)
        return append(self.heads, self.num_heads, self.rotation, self.norms, cache, self.slots, self.scales), pool


def random_case(seed: int, num_tokens: int | None = None) -> Case:
    """Return a case of random shape; its heads are strided, as if output gates followed them."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    head_dim, dtype = rng.choice((64, 128, 256)), rng.choice((torch.bfloat16, torch.float16))
    num_parts, heads_per_part, block_size = rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3)), rng.choice((16, 32))
    counts = num_parts * heads_per_part * rng.choice((1, 3, 4)), num_parts * heads_per_part
    num_tokens = num_tokens or rng.randint(1, 9)
    width = rng.choice((head_dim, head_dim, head_dim // 2, head_dim * 3 // 4))
    angles = 6 * torch.rand(NUM_POSITIONS, width // 2, generator=generator)
    positions = torch.randint(NUM_POSITIONS, (num_tokens,), generator=generator)
    weight = torch.rand(sum(counts), head_dim, generator=generator).to(dtype)
    heads = torch.randn(num_tokens, sum(counts) + counts[1] + 2, head_dim, generator=generator).to(dtype)
    shape = (NUM_BLOCKS, num_parts, NUM_LAYERS, 2, heads_per_part, block_size, head_dim)
    return Case(
        heads=heads[:, :-2],
        num_heads=counts[0],
        rotation=Rotation(torch.cat([angles.cos(), angles.sin()], dim=1), positions, rng.random() < 0.3),
        norms=HeadNorms(weight, counts, 1e-6, rng.choice((0.0, 1.0))) if rng.random() < 0.6 else None,
        slots=torch.randperm(NUM_BLOCKS * block_size, generator=generator)[:num_tokens],
        pool=torch.randn(shape, generator=generator).to(dtype),
    )


def fp8_case(seed: int) -> Case:
    """Return a case whose keys and values are exact in FP8: Triton's interpreter does not round to it as GPUs do."""
    case, scales = random_case(seed), KVScales(0.5, 4.0)
    heads = torch.randint(-15, 16, case.heads.shape, generator=torch.Generator().manual_seed(seed)).to(case.heads.dtype)
    num_keys = (heads.shape[1] - case.num_heads) // 2
    heads[:, case.num_heads : case.num_heads + num_keys] *= scales.key
    heads[:, case.num_heads + num_keys :] *= scales.value
    heads[:, -1, 0] = 1e4  # beyond the range
    cos, sin = torch.ones_like(case.rotation.table).chunk(2, dim=1)
    rotation = Rotation(torch.cat([cos, 0 * sin], dim=1), case.rotation.positions, case.rotation.interleaved)
    pool = torch.zeros_like(case.pool).to(fp8_rows.DTYPE)
    return replace(case, heads=heads, rotation=rotation, norms=None, pool=pool, scales=scales)


def check_kernel_on_cases(append: KVAppend) -> None:
    """Compare with torch: values to the bit; queries and keys too if there are no norms, whose sums have another order.

    Triton's interpreter truncates to bfloat16 where a GPU rounds, so queries and keys differ by up to a unit each time.
    """
    for seed in range(NUM_CASES):
        check(random_case(seed, {0: 1, 1: 70}.get(seed)), append, seed)
    for seed in range(4):
        check(fp8_case(seed), append, seed)


def check(case: Case, append: KVAppend, seed: int) -> None:
    """Compare the queries and the whole pool."""
    (queries, pool), (their_queries, their_pool) = case.appended(append), case.appended(append_in_torch)
    assert queries.is_contiguous()
    keys, their_keys = pool[:, :, LAYER, 0], their_pool[:, :, LAYER, 0]
    is_exact = case.norms is None and (case.heads.dtype == torch.float16 or pool.dtype == fp8_rows.DTYPE)
    for name, rows, expected in (("queries", queries, their_queries), ("keys", keys, their_keys)):
        errors, expected = (rows.float() - expected.float()).abs(), expected.float()
        unit = torch.finfo(case.heads.dtype).eps * expected.abs().amax(-1, keepdim=True)
        assert bool((errors <= 3 * unit).all()), f"{name} of case {seed}: {errors.max()}"
        assert not is_exact or not errors.any(), f"{name} of case {seed}: {errors.max()}"
        is_rounded = case.heads.dtype == torch.float16
        assert not is_rounded or (errors == 0).float().mean() > 0.99, f"{name} of case {seed}"
    keys.copy_(their_keys)
    assert torch.equal(pool.view(torch.uint8), their_pool.view(torch.uint8)), f"values or other layers of case {seed}"
