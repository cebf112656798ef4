"""Time of attention over the paged KV cache on this CPU: the compiled kernel compared with the torch reference.

    python -m benchmarks.attention [--json FILE] [--repeats N] [--threads N] [--instructions NAME]
                                   [--kv-cache-dtype int8|int4]

Decode steps and prefill chunks, one layer a call. Each call uses another layer of a pool larger than the CPU's caches,
as in a model. The two candidates alternate, and medians are reported. With `--kv-cache-dtype int8`
or `int4`, the candidates are the kernel with KV in the compute dtype and the kernel with KV in that type.
"""

import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import torch
from torch import Tensor

from baton.engine.attention import int4_rows, int8_rows
from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.native import NativeAttention
from baton.engine.attention.torch_reference import GATHERED_BYTES, TorchAttention
from baton.engine.execution.batch import Batch
from baton.engine.kv.dtype import row_bytes
from baton.engine.kv.layout import KVCacheLayout, torch_dtype
from benchmarks.machine import MachineLimits, measure_limits
from benchmarks.report import Report

BLOCK_SIZE = 16
POOL_BYTES = 384 << 20  # minimum size of all layers: larger than a CPU's caches
MAX_LAYERS = 28
MAX_PREFILL_LAYERS = 4  # chunks are compute-bound
COMPARED = {
    "auto": ("torch us", "native us", "torch / native"),
    "int8": ("own us", "int8 us", "own / int8"),
    "int4": ("own us", "int4 us", "own / int4"),
}
ENCODERS = {"int8": int8_rows.encode, "int4": int4_rows.encode}
RATES = ("GB/s", "% of read bandwidth", "GFLOP/s", "% of GEMM rate")  # of the second


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's heads."""

    name: str
    num_heads: int
    num_kv_heads: int
    key_width: int
    value_width: int

    @property
    def is_latent(self) -> bool:
        """Whether this is MLA."""
        return self.value_width < self.key_width

    def cached_bytes(self, kv_dtype: str) -> int:
        """Return the KV bytes of one token in one layer."""
        return (1 if self.is_latent else 2) * self.num_kv_heads * row_bytes(self.key_width, kv_dtype)

    def here(self, dtype: torch.dtype, kv_dtype: str) -> AttentionHeads:
        """Return them as the kernel's heads."""
        return AttentionHeads(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            key_width=self.key_width,
            value_width=self.value_width,
            dtype=dtype,
            kv_dtype=torch_dtype(kv_dtype),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One measured step."""

    name: str
    query_lens: list[int]
    context_lens: list[int]

    @property
    def is_decode(self) -> bool:
        """Whether each sequence has one new token."""
        return max(self.query_lens) == 1

    @property
    def num_seen(self) -> int:
        """Tokens seen, summed over the new tokens."""
        lens = zip(self.query_lens, self.context_lens, strict=True)
        return sum(query * context - query * (query - 1) // 2 for query, context in lens)


HEADS = (
    Heads("Qwen3-0.6B: 16 / 8 of 128", 16, 8, 128, 128),
    Heads("bundled model: 4 / 2 of 64", 4, 2, 64, 64),
    Heads("DeepSeek-V2-Lite: MLA 16 of 576", 16, 1, 576, 512),
)
STEPS = (
    *(
        Step(f"decode {batch} x {context}", [1] * batch, [context] * batch)
        for batch, context in ((1, 512), (8, 512), (32, 512), (8, 2048))
    ),
    *(
        Step(f"prefill {new} after {before}", [new], [before + new])
        for new, before in ((256, 0), (256, 2048), (2048, 0))
    ),
)


class Layers:
    """Pool of some layers, and the inputs of their attention."""

    def __init__(self, heads: Heads, dtype: torch.dtype, step: Step, kv_dtype: str) -> None:
        self.heads, self.dtype, self.step, self.kv_dtype = heads, dtype, step, kv_dtype
        tables = block_tables(step)
        num_blocks = sum(map(len, tables)) + 1
        layer_bytes = num_blocks * BLOCK_SIZE * heads.cached_bytes(kv_dtype)
        most = MAX_LAYERS if step.is_decode else MAX_PREFILL_LAYERS
        self.num_layers = min(most, POOL_BYTES // layer_bytes + 1)
        self.batch = make_batch(step, tables)
        self.pool = self._random(num_blocks, *self._block_shape())
        if kv_dtype in ENCODERS:
            self.pool = ENCODERS[kv_dtype](self.pool)
        num_tokens = sum(step.query_lens)
        self.q = self._random(num_tokens, heads.num_heads, heads.key_width)
        self.k, self.v = self._random(2, num_tokens, heads.num_kv_heads, heads.key_width)

    def seconds(self, backend: AttentionBackend) -> float:
        """Return the seconds of one layer, with its share of the plan that all layers use."""
        started_s = time.perf_counter()
        backend.plan(self.batch)
        for layer in range(self.num_layers):
            cache = KVCacheLayout.layer_cache(self.pool, layer)
            if self.heads.is_latent:
                backend.forward_latent(self.q, self.k[:, 0], cache, self.batch)
            else:
                backend.forward(self.q, self.k, self.v, cache, self.batch)
        return (time.perf_counter() - started_s) / self.num_layers

    def _block_shape(self) -> tuple[int, ...]:
        heads = self.heads
        if heads.is_latent:
            return (self.num_layers, BLOCK_SIZE, heads.key_width)
        return (1, self.num_layers, 2, heads.num_kv_heads, BLOCK_SIZE, heads.key_width)

    def _random(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype).normal_()


def block_tables(step: Step) -> list[list[int]]:
    """Return scattered blocks, as in a fragmented pool."""
    lens = [-(-length // BLOCK_SIZE) for length in step.context_lens]
    ids = random.Random(0).sample(range(1, sum(lens) + 1), sum(lens))
    return [[ids.pop() for _ in range(length)] for length in lens]


def make_batch(step: Step, tables: Sequence[Sequence[int]]) -> Batch:
    """Return the step's batch; only the fields that attention reads are meaningful."""
    longest = max(map(len, tables))
    lens = list(zip(step.query_lens, step.context_lens, strict=True))
    positions = [torch.arange(context - query, context) for query, context in lens]
    slots = [
        torch.tensor(table)[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        for table, places in zip(tables, positions, strict=True)
    ]
    return Batch(
        token_ids=torch.zeros(sum(step.query_lens), dtype=torch.int64),
        positions=torch.cat(positions),
        slot_mapping=torch.cat(slots),
        query_starts=torch.tensor([0, *step.query_lens]).cumsum(0),
        context_lens=torch.tensor(step.context_lens),
        block_tables=torch.tensor([[*table, *[0] * (longest - len(table))] for table in tables]),
        logits_indices=torch.tensor([0]),
        query_lens_list=step.query_lens,
        context_lens_list=step.context_lens,
        num_decodes=len(lens) if step.is_decode else 0,
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """An attention backend with its inputs."""

    backend: AttentionBackend
    layers: Layers


def candidates(
    heads: Heads, dtype: torch.dtype, step: Step, kv_dtype: str, instructions: str | None
) -> tuple[Candidate, Candidate]:
    """Return the two candidates."""
    own = str(dtype).removeprefix("torch.")
    scale, usual = heads.key_width**-0.5, Layers(heads, dtype, step, own)
    native = Candidate(NativeAttention(scale, BLOCK_SIZE, heads.here(dtype, own), instructions), usual)
    if kv_dtype in ENCODERS:
        kernel = NativeAttention(scale, BLOCK_SIZE, heads.here(dtype, kv_dtype), instructions)
        return native, Candidate(kernel, Layers(heads, dtype, step, kv_dtype))
    reference = TorchAttention(
        scale,
        BLOCK_SIZE,
        kv_lora_rank=heads.value_width if heads.is_latent else 0,
        max_gathered_tokens=GATHERED_BYTES // heads.cached_bytes(own),
    )
    return Candidate(reference, usual), native


def measure(report: Report, compared: tuple[Candidate, Candidate], limits: MachineLimits, repeats: int) -> None:
    """Add a row."""
    layers = compared[1].layers
    heads, step = layers.heads, layers.step
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 1):
        for candidate, taken in zip(compared, times, strict=True):
            seconds = candidate.layers.seconds(candidate.backend)
            if repeat:  # the first warms up
                taken.append(seconds)
    first_s, second_s = map(median, times)
    bytes_per_s = sum(step.context_lens) * heads.cached_bytes(layers.kv_dtype) / second_s
    flop_per_s = 2 * step.num_seen * heads.num_heads * (heads.key_width + heads.value_width) / second_s
    report.add(
        heads.name,
        str(layers.dtype).removeprefix("torch."),
        step.name,
        first_s * 1e6,
        second_s * 1e6,
        first_s / second_s,
        bytes_per_s / 1e9 if step.is_decode else "",
        100 * bytes_per_s / limits.read_bytes_per_s if step.is_decode else "",
        flop_per_s / 1e9,
        100 * flop_per_s / limits.gemm_flop_per_s,
    )


@click.command(help=__doc__)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the table as JSON.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--threads", default=os.cpu_count() or 1, show_default=True)
@click.option("--instructions", help="Instruction set of the kernel. Default: the best available.")
@click.option("--kv-cache-dtype", "kv_dtype", type=click.Choice(list(COMPARED)), default="auto", show_default=True)
@click.option("--only", default="", help="Only steps whose name contains this.")
def main(
    json_file: Path | None, repeats: int, threads: int, instructions: str | None, kv_dtype: str, only: str
) -> None:
    """Measure and print the tables."""
    columns = ("heads", "dtype", "step", *COMPARED[kv_dtype], *RATES)
    report = Report("Attention over the paged KV cache, one layer", columns)
    for dtype in (torch.bfloat16, torch.float32):
        limits = measure_limits(dtype, threads)
        report.notes.append(
            f"{dtype}: memory is read at {limits.read_bytes_per_s / 1e9:.1f} GB/s, matrices of 1536 are multiplied at "
            f"{limits.gemm_flop_per_s / 1e9:.0f} GFLOP/s, both with {threads} threads."
        )
        for heads in HEADS:
            for step in STEPS:
                if only in step.name and not (kv_dtype == "int4" and heads.is_latent):
                    measure(report, candidates(heads, dtype, step, kv_dtype, instructions), limits, repeats)
    report.show()
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
