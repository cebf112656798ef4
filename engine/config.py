"""Configuration of an engine and its model: plain data, no torch."""

import math
from dataclasses import dataclass

from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.execution.visible_gpus import visible_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an engine, under vLLM's names where it has one."""

    model: str  # directory of a checkpoint
    dtype: str = "auto"  # auto (the checkpoint's), bfloat16, float32
    quantization: str | None = None  # int8: both weights and activations; None: none, products in `dtype`
    device: str = "auto"  # cpu, cuda, cuda:1; auto is resolved on creation: cuda if torch sees a GPU, otherwise cpu
    block_size: int = 16  # tokens per block
    kv_cache_memory_bytes: int | None = None  # size of the block pool; None: 512 MiB, on a GPU the remaining memory
    gpu_memory_utilization: float = 0.9  # fraction of GPU memory to use if kv_cache_memory_bytes is not set
    kv_cache_dtype: str = "auto"  # auto (the model's), bfloat16, float32; int8 with a scale per row; fp8
    max_model_len: int | None = None  # longest prompt plus output; None: the checkpoint's context
    max_num_batched_tokens: int | None = None  # token budget of a step; None: 256, on a GPU 8192
    max_num_seqs: int | None = None  # requests in the batch; None: 64, on a GPU 256
    max_num_waiting: int = 1024  # bound of the waiting queue
    enable_prefix_caching: bool = True
    kv_parts: int | None = None  # most shards of a block; None: as many as the ranks of this worker need
    num_threads: int | None = None  # torch's threads; None: one per core
    cores: str | None = None  # CPU cores that the engine computes on, such as 0-3,8; None: any
    async_scheduling: bool | None = None  # launch a step while the previous one runs; None: on a GPU only
    enforce_eager: bool = False  # never record decodes as CUDA graphs

    def __post_init__(self) -> None:
        """Replace the device `auto` by the one it resolves to on this machine."""
        if self.device == "auto":
            object.__setattr__(self, "device", visible_gpus().auto_device)

    @property
    def is_on_cpu(self) -> bool:
        """Whether the device is a CPU."""
        return self.device.split(":")[0] == "cpu"

    @property
    def step_tokens(self) -> int:
        """Token budget of a step. It bounds the prefill that a handover cannot overlap, and the ITL of decodes."""
        return self.max_num_batched_tokens or (256 if self.is_on_cpu else 8192)

    @property
    def batch_seqs(self) -> int:
        """Maximum number of requests in the batch."""
        return self.max_num_seqs or (64 if self.is_on_cpu else 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding: kind of scaling and its parameters, as in config.json."""

    theta: float
    rotary_dim: int
    kind: str = "default"  # default, linear, llama3, yarn
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    truncate: bool = True
    interleaved: bool = False  # rotated pairs are adjacent dimensions (DeepSeek), not half the head apart

    @property
    def cos_sin_scale(self) -> float:
        """Factor on cos and sin (YaRN, arXiv 2309.00071, section 3.4; with DeepSeek's two mscales)."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)


def yarn_mscale(factor: float, weight: float) -> float:
    """Return YaRN's scale of attention logits for a context extended by `factor`; 1 if it is not extended."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Mixture of experts: expert routing and the experts' sizes."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    norm_topk_prob: bool = True
    scoring: str = "softmax"  # softmax, sigmoid
    score_correction_bias: bool = False  # added to the scores for routing only, not to the weights
    num_groups: int = 1  # experts are chosen from the best `topk_groups` of these
    topk_groups: int = 1
    group_score_top: int = 2  # a group's score is the sum of this many of its best experts' scores
    routed_scaling_factor: float = 1.0
    num_shared_experts: int = 0
    dense_layers: frozenset[int] = frozenset()  # layers with a dense MLP


@dataclass(frozen=True, slots=True, kw_only=True)
class MLAConfig:
    """Multi-head latent attention (DeepSeek-V2)."""

    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        """Width of a query head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def latent_dim(self) -> int:
        """Width of a token's cache entry: the compressed KV and the rotary key shared by all heads."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A checkpoint's config.json, parsed and validated."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_model_len: int
    dtype: str  # bfloat16, float32
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    moe: MoEConfig | None = None
    mla: MLAConfig | None = None
    num_nextn_predict_layers: int = 0  # multi-token prediction layers after the last layer; in the files, not loaded
    eos_token_ids: frozenset[int] = frozenset()
    stored_quantization: StoredQuantization | None = None  # how the files store FP8 matrices; None: they have none

    @property
    def attention_scale(self) -> float:
        """Factor on attention scores before the softmax."""
        if self.mla is None:
            return float(self.head_dim**-0.5)
        scale = float(self.mla.qk_head_dim**-0.5)
        if self.rope.kind != "default" and self.rope.mscale_all_dim:
            scale *= yarn_mscale(self.rope.factor, self.rope.mscale_all_dim) ** 2
        return scale

    def is_sparse(self, layer: int) -> bool:
        """Return whether a layer's MLP is a mixture of experts."""
        return self.moe is not None and layer not in self.moe.dense_layers
