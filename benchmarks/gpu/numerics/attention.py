"""The device's attention backend compared with TorchAttention in fp32 on the same device and inputs."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from baton.engine.attention import fp8_rows
from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.factory import attention_for
from baton.engine.attention.flashinfer import FlashInferAttention
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.kind import AttentionKind
from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.kv.dtype import kv_cache_dtype
from baton.engine.kv.layout import LATENT_DIMS, KVCacheLayout, torch_dtype
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.mla import MLAConfig
from baton.engine.rope import RopeConfig
from benchmarks.gpu.numerics.closeness import ATTENTION
from benchmarks.gpu.numerics.paged_batch import Lengths, make_batch
from benchmarks.gpu.stage import Record, Setting

NUM_LAYERS, LAYER = 2, 1  # the second of two layers, so that a wrong stride shows
LONGEST = 6000
SEEDS = 3


@dataclass(frozen=True, slots=True)
class Model:
    """Attention heads of a model."""

    name: str
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_parts: int = 1
    mla: MLAConfig | None = None
    span: AttentionSpan = FULL
    soft_cap: float | None = None
    has_sinks: bool = False

    def kind(self, device: torch.device) -> AttentionKind:
        """Return the kind of the layer's attention."""
        sinks = torch.linspace(-2, 4, self.num_heads, device=device) if self.has_sinks else None
        return AttentionKind(self.span, sinks)

    def config(self, dtype: str) -> ModelConfig:
        """Return a config with the fields that the choice of a backend reads; the others are arbitrary."""
        return ModelConfig(
            architecture="LlamaForCausalLM",
            vocab_size=2,
            hidden_size=1,
            num_layers=NUM_LAYERS,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            intermediate_size=1,
            rms_norm_eps=1e-6,
            rope=RopeConfig(theta=1e4, rotary_dim=self.head_dim),
            max_model_len=LONGEST,
            dtype=dtype,
            mla=self.mla,
            spans=(self.span,) * NUM_LAYERS,
            attention_soft_cap=self.soft_cap,
        )


def latent(num_heads: int) -> Model:
    """DeepSeek's heads."""
    sizes = MLAConfig(kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    return Model(f"MLA {num_heads} of 576", num_heads, num_heads, 576, mla=sizes)


MODELS = (
    Model("32 / 8 of 128", 32, 8, 128),
    Model("16 / 8 of 128", 16, 8, 128),
    Model("32 / 8 of 128 in 2 parts", 32, 8, 128, num_parts=2),
    Model("28 / 4 of 128", 28, 4, 128),
    Model("8 / 8 of 64", 8, 8, 64),
    Model("14 / 2 of 64", 14, 2, 64),
    Model("16 / 4 of 256", 16, 4, 256),
    Model("16 / 8 of 256, window, cap", 16, 8, 256, span=AttentionSpan(1000), soft_cap=2.0),
    Model("64 / 8 of 64, window, sinks", 64, 8, 64, span=AttentionSpan(128), has_sinks=True),
    Model("64 / 8 of 64 in 2 parts, sinks", 64, 8, 64, num_parts=2, has_sinks=True),
    Model("40 / 8 of 128, chunks", 40, 8, 128, span=AttentionSpan(1024, is_chunked=True)),
    latent(16),
    latent(128),
)
QUICK_MODELS = (
    Model("4 / 2 of 16", 4, 2, 16),
    Model("4 / 2 of 16, window, cap, sinks", 4, 2, 16, span=AttentionSpan(20), soft_cap=2.0, has_sinks=True),
    latent(2),
)


def steps(setting: Setting, seed: int) -> Iterator[tuple[str, list[Lengths]]]:
    """Yield batches: decodes, first chunks, chunks after a cached prefix, and a mix of all."""
    rng = random.Random(seed)
    longest, count = (100, 3) if setting.is_quick else (LONGEST, 17)
    decodes = [Lengths(1, rng.randint(1, longest)) for _ in range(count)]
    news = [rng.randint(2, longest // 6) for _ in range(3)]
    chunks = [Lengths(new, new) for new in news]
    behind = [Lengths(new, new + rng.randint(1, longest // 2)) for new in news]
    yield "one decode", decodes[:1]
    yield "decodes", decodes
    yield "prompts", chunks
    yield "behind a prefix", behind
    yield "mixed", [*decodes, *chunks, *behind]


def check_attention(record: Record, setting: Setting, model: Model, kv_dtype: str, block_size: int, seed: int) -> None:
    """Compare results and written caches of batches without a common prefix."""
    backend = attention_for(model.config(setting.dtype_name), block_size, setting.device, kv_dtype, model.num_parts)
    if setting.device.type == "cuda":
        name = f"FlashInfer's kernels serve {model.name}, KV {kv_dtype}"
        record.find(name, isinstance(backend, FlashInferAttention), type(backend).__name__)
    case = Case(model, kv_dtype, block_size)
    for name, sequences in steps(setting, seed):
        compare(record, setting, case, name, backend, make_batch(sequences, block_size, seed))


def check_shared_prefix(record: Record, setting: Setting, model: Model, kv_dtype: str, seed: int) -> None:
    """Compare decodes with a common prefix, which is read once for all of them, and a chunk; FlashInfer's only."""
    config, case = model.config(setting.dtype_name), Case(model, kv_dtype, 16)
    heads = AttentionHeads.of(config, torch_dtype(kv_cache_dtype(config, kv_dtype)))
    backend = FlashInferAttention(
        config.attention_scale,
        16,
        heads,
        setting.device,
        least_saved_bytes=1,
        soft_cap=model.soft_cap,
        spans=config.spans,
    )
    rng = random.Random(seed)
    for num_shared in (1, 100):
        decodes = [Lengths(1, 16 * num_shared + rng.randint(1, 900)) for _ in range(9)]
        batch = make_batch([*decodes, Lengths(50, 300)], 16, seed)
        batch.block_tables[1 : len(decodes), :num_shared] = batch.block_tables[0, :num_shared]
        name = f"{num_shared} blocks shared"
        record.find(f"{case}, {name}", backend.num_shared_blocks(batch) == num_shared, "are read once for all decodes")
        compare(record, setting, case, name, backend, batch)


@dataclass(frozen=True, slots=True)
class Case:
    """Model and cache with which a batch is computed."""

    model: Model
    kv_dtype: str
    block_size: int

    def __str__(self) -> str:
        return f"{self.model.name}, KV {self.kv_dtype}, blocks of {self.block_size}"


def compare(record: Record, setting: Setting, case: Case, name: str, backend: AttentionBackend, batch: Batch) -> None:
    """Compare the results and the written cache of a batch."""
    model, kv_dtype, block_size = case.model, case.kv_dtype, case.block_size
    scales = KVScales(0.5, 0.25) if kv_dtype == "fp8" else UNSCALED
    exact = TorchAttention.for_model(model.config("float32"), block_size)
    layout = KVCacheLayout.of(model.config(setting.dtype_name), block_size, model.num_parts, kv_dtype=kv_dtype)
    pool = drawn(layout.pool_shape(int(batch.block_tables.max()) + 1), setting).to(layout.dtype)
    inputs = Inputs.draw(model, batch.num_tokens, setting)
    kind = model.kind(setting.device)
    result = attend(backend, inputs, pool, batch, scales, kind)
    seen, exact_pool = (inputs.float(), pool.float()) if kv_dtype == "auto" else in_fp8(inputs, pool, scales)
    expected = attend(exact, seen, exact_pool, batch, UNSCALED, kind)
    name = f"{type(backend).__name__}, {case}, {name}"
    record.compare(name, result.values, expected.values, ATTENTION[setting.dtype])
    is_same = torch.equal(scaled(result.pool, scales), expected.pool)
    record.find(f"{name}: cache", is_same, "the cache as the reference wrote it" if is_same else "other KV")


def in_fp8(inputs: "Inputs", pool: Tensor, scales: KVScales) -> tuple["Inputs", Tensor]:
    """Return the inputs and the pool in fp32 with keys and values rounded to FP8."""
    keys, values = fp8_rows.encode(inputs.k, scales.key), fp8_rows.encode(inputs.v, scales.value)
    rounded = Inputs(inputs.q.float(), keys.float() * scales.key, values.float() * scales.value)
    return rounded, scaled(pool, scales)


def scaled(pool: Tensor, scales: KVScales) -> Tensor:
    """Return a pool in fp32: [num_blocks, parts, num_layers, 2, heads, block_size, head_dim], or latents."""
    numbers = pool.float()
    if pool.dim() != LATENT_DIMS:
        numbers[:, :, :, 0] *= scales.key
        numbers[:, :, :, 1] *= scales.value
    return numbers


@dataclass(frozen=True, slots=True)
class Inputs:
    """Queries, and the new tokens' keys and values."""

    q: Tensor
    k: Tensor
    v: Tensor

    @classmethod
    def draw(cls, model: Model, num_tokens: int, setting: Setting) -> "Inputs":
        """Draw random inputs, each [num_tokens, heads, width]."""
        kv_heads = 1 if model.mla else model.num_kv_heads
        counts = model.num_heads, kv_heads, kv_heads
        return cls(*(drawn((num_tokens, count, model.head_dim), setting) for count in counts))

    def float(self) -> "Inputs":
        """Return the same values in fp32."""
        return Inputs(self.q.float(), self.k.float(), self.v.float())


@dataclass(frozen=True, slots=True)
class Attended:
    """A layer's output, and the pool afterwards."""

    values: Tensor
    pool: Tensor


def attend(
    backend: AttentionBackend, inputs: Inputs, pool: Tensor, batch: Batch, scales: KVScales, kind: AttentionKind
) -> Attended:
    """Run one layer's attention on a copy of the pool."""
    pool = pool.clone()
    cache = KVCacheLayout.layer_cache(pool, LAYER)
    batch = batch.on(pool.device)
    backend.plan(batch)
    if pool.dim() == LATENT_DIMS:
        return Attended(backend.forward_latent(inputs.q, inputs.k[:, 0], cache, batch), pool)
    return Attended(backend.forward(inputs.q, inputs.k, inputs.v, cache, batch, scales, kind), pool)


def drawn(shape: tuple[int, ...], setting: Setting) -> Tensor:
    """Return normally distributed values."""
    return torch.randn(shape, device=setting.device, dtype=setting.dtype)


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    models, seeds = (QUICK_MODELS, 1) if setting.is_quick else (MODELS, SEEDS)
    for model in models:
        for kv_dtype in ("auto",) if model.mla else ("auto", "fp8"):
            for block_size in (16,) if model.num_parts > 1 else (16, 32, 64):
                for seed in range(seeds):
                    check = partial(check_attention, record, setting, model, kv_dtype, block_size, seed)
                    record.attempt(str(Case(model, kv_dtype, block_size)), check)
            if setting.device.type == "cuda" and model.mla is None and model.num_parts == 1 and model.span == FULL:
                shared = partial(check_shared_prefix, record, setting, model, kv_dtype, seed=0)
                record.attempt(f"{model.name}, KV {kv_dtype}, a shared prefix", shared)
