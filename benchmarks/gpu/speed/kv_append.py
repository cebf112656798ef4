"""Time of head norms, rotation and append of KV by separate kernels and by the fused one, in a CUDA graph of layers."""

from collections.abc import Callable

import torch

from baton.engine.attention.flashinfer_kernels import LAYOUT, FlashInferKernels
from baton.engine.attention.kv_append import append_for
from baton.engine.attention.paged_sequences import NewTokens, PagedSequences
from baton.engine.execution.cuda_graphs import CudaRecorder
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.ops.base import HeadNorms, Rotation
from baton.engine.ops.flashinfer_ops import FlashInferOps
from benchmarks.gpu.numerics.paged_batch import Lengths, make_batch
from benchmarks.gpu.stage import Record, Setting

NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 36, 32, 8, 128, 16  # Qwen3-8B
COUNTS = (NUM_HEADS, NUM_KV_HEADS)
STEPS = ([Lengths(1, 40)], [Lengths(1, 40)] * 8, [Lengths(1, 40)] * 64, [Lengths(2048, 2048)])
NUM_POSITIONS = 2048
NUM_REPLAYS = 20
COLUMNS = ("tokens", "separate us", "fused us", "separate / fused")  # of a layer


def us_per_layer(compute: Callable[[], object]) -> float:
    """Return the microseconds of one layer in a graph of `compute`, which computes all layers."""
    replay = CudaRecorder().record(compute)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    replay()
    start.record()
    for _ in range(NUM_REPLAYS):
        replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / NUM_REPLAYS / NUM_LAYERS


def measure(record: Record, setting: Setting, sequences: list[Lengths]) -> None:
    """Add a row for a step of these sequences."""
    device, dtype = setting.device, setting.dtype
    batch = make_batch(sequences, BLOCK_SIZE, seed=0).on(device)
    num_blocks, num_tokens = int(batch.block_tables.max()) + 1, batch.num_tokens
    new = NewTokens.of(batch, PagedSequences.of(batch, BLOCK_SIZE))
    pool = torch.zeros(num_blocks, 1, NUM_LAYERS, 2, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM, dtype=dtype, device=device)
    caches = [KVCacheLayout.layer_cache(pool, layer) for layer in range(NUM_LAYERS)]
    heads = torch.randn(num_tokens, sum(COUNTS) + NUM_KV_HEADS, HEAD_DIM, dtype=dtype, device=device)
    rotation = Rotation(torch.rand(NUM_POSITIONS, HEAD_DIM, device=device), batch.positions, interleaved=False)
    norms = HeadNorms(torch.ones(sum(COUNTS), HEAD_DIM, dtype=dtype, device=device), COUNTS, 1e-6)
    ops, kernels, append = FlashInferOps(), FlashInferKernels.load(), append_for(device, dtype, dtype)

    def separate() -> None:
        for cache in caches:
            qk, values = heads.split_with_sizes([sum(COUNTS), NUM_KV_HEADS], dim=1)
            keys = ops.rotate(qk, rotation, norms)[:, NUM_HEADS:]
            kernels.append(
                keys, values, new.sequences, new.positions, cache[:, 0].unbind(1),
                new.blocks, new.block_starts, new.last_block_lens, kv_layout=LAYOUT,
            )  # fmt: skip

    def fused() -> None:
        for cache in caches:
            assert append is not None, "see `run`"
            append(heads, NUM_HEADS, rotation, norms, cache, batch.slot_mapping)

    separate_us, fused_us = us_per_layer(separate), us_per_layer(fused)
    record.add_row(COLUMNS, num_tokens, separate_us, fused_us, separate_us / fused_us)


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    if setting.device.type != "cuda" or append_for(setting.device, setting.dtype, setting.dtype) is None:
        record.note(f"there is no fused append on {setting.device}")
        return
    for sequences in STEPS:
        measure(record, setting, sequences)
