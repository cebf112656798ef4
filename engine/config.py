"""What an engine is told; plain data, no torch."""

import math
from dataclasses import dataclass

from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.execution.visible_gpus import visible_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Options of an engine, under vLLM's names where it has one."""

    model: str  # directory of a checkpoint
    dtype: str = "auto"  # auto (the checkpoint's), bfloat16, float32
    quantization: str | None = None  # int8: weights and what they are multiplied with; None: as `dtype` says
    device: str = "auto"  # cpu, cuda, cuda:1; auto is replaced at once: cuda if torch sees a GPU, otherwise cpu
    block_size: int = 16  # tokens a block
    kv_cache_memory_bytes: int | None = None  # of the block pool; None: 512 MiB, on a GPU what is left
    gpu_memory_utilization: float = 0.9  # share of a GPU's memory to take, if the pool's is not said
    kv_cache_dtype: str = "auto"  # auto (the model's), bfloat16, float32; int8 with a scale for each row; fp8
    max_model_len: int | None = None  # longest prompt plus output; None: what the checkpoint allows
    max_num_batched_tokens: int | None = None  # token budget of a step; None: 256, on a GPU 8192
    max_num_seqs: int | None = None  # requests in the batch; None: 64, on a GPU 256
    max_num_waiting: int = 1024  # bound of the waiting queue
    enable_prefix_caching: bool = True
    kv_parts: int | None = None  # of a block, at most; None: as many as the ranks of this worker need
    num_threads: int | None = None  # of torch; None: as many as there are cores
    cores: str | None = None  # that the engine computes on, such as 0-3,8; None: any
    async_scheduling: bool | None = None  # launch a step while the one before is under way; None: on a GPU
    enforce_eager: bool = False  # on a GPU decodes are not recorded as CUDA graphs

    def __post_init__(self) -> None:
        """Replaces `auto` by the device that it stands for on this machine."""
        if self.device == "auto":
            object.__setattr__(self, "device", visible_gpus().auto_device)

    @property
    def is_on_cpu(self) -> bool:
        """Whether the device is a CPU."""
        return self.device.split(":")[0] == "cpu"

    @property
    def step_tokens(self) -> int:
        """Token budget of a step: how much a handover cannot hide, and how long decodes wait."""
        return self.max_num_batched_tokens or (256 if self.is_on_cpu else 8192)

    @property
    def batch_seqs(self) -> int:
        """Most requests in the batch."""
        return self.max_num_seqs or (64 if self.is_on_cpu else 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding: which scaling, and its numbers as they stand in config.json."""

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
    interleaved: bool = False  # pairs are neighbours (DeepSeek), not halves apart

    @property
    def cos_sin_scale(self) -> float:
        """Factor on cos and sin (YaRN, arXiv 2309.00071, section 3.4; DeepSeek's two mscales)."""
        if self.kind != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)


def yarn_mscale(factor: float, weight: float) -> float:
    """YaRN's growth of attention logits with the context, 1 when it does not grow."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Mixture of experts: how tokens choose experts, and the experts' sizes."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    norm_topk_prob: bool = True
    scoring: str = "softmax"  # softmax, sigmoid
    score_correction_bias: bool = False  # added for the choice only
    num_groups: int = 1  # experts are chosen from the best `topk_groups` of these
    topk_groups: int = 1
    group_score_top: int = 2  # a group's score is the sum of so many of its best experts' scores
    routed_scaling_factor: float = 1.0
    num_shared_experts: int = 0
    dense_layers: frozenset[int] = frozenset()  # layers with an ordinary MLP


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
        """Width of a token's cache entry: the compressed KV and the rotated key that all heads share."""
        return self.kv_lora_rank + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A checkpoint's config.json, read and checked."""

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
    num_nextn_predict_layers: int = 0  # speculative layers after the last one, in the files and not loaded
    eos_token_ids: frozenset[int] = frozenset()
    stored_quantization: StoredQuantization | None = None  # of the files' matrices in FP8; None: there are none

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
        """Whether a layer's MLP is a mixture of experts."""
        return self.moe is not None and layer not in self.moe.dense_layers
