"""GLM-4 (arXiv 2406.12793) and GLM-4.5 (arXiv 2508.06471): half of each head is rotated."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.experts import read_corrected_experts
from baton.engine.families.tensor_names import NormNames, TensorNames
from baton.engine.moe import MoEConfig

READS = frozenset({"attention_bias", "partial_rotary_factor"})
HEAD_DIM, PARTIAL, EPS = 128, 0.5, 1.5625e-7  # defaults


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(shared, qkv_bias=config.boolean("attention_bias", True))


def _read_moe(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(
        shared,
        qkv_bias=config.boolean("attention_bias", False),
        qk_norm="head" if config.boolean("use_qk_norm", False) else None,
        moe=_read_experts(config, shared.num_layers),
    )


def _read_experts(config: JsonObject, num_layers: int) -> MoEConfig:
    first_sparse = config.size("first_k_dense_replace", 1, minimum=0)
    dense_layers = frozenset(range(min(first_sparse, num_layers)))
    return read_corrected_experts(config, dense_layers, num_shared=1, scaling=1.0)


GLM = Family(
    title="GLM-4",
    architectures=("GlmForCausalLM",),
    read=_read,
    reads=READS,
    names=TensorNames(gate_up="gate_up_proj"),
    rms_norm_eps=EPS,
    interleaved=True,
    head_dim=HEAD_DIM,
    partial_rotary_factor=PARTIAL,
)
GLM4 = Family(
    title="GLM-4-0414 and GLM-Z1",
    architectures=("Glm4ForCausalLM",),
    read=_read,
    reads=READS,
    names=TensorNames(
        norms=NormNames(after_attention="post_self_attn_layernorm", after_feed_forward="post_mlp_layernorm"),
        gate_up="gate_up_proj",
    ),
    overflows_float16=True,
    rms_norm_eps=EPS,
    interleaved=True,
    head_dim=HEAD_DIM,
    partial_rotary_factor=PARTIAL,
)
GLM4_MOE = Family(
    title="GLM-4.5, 4.6 and 4.7",
    architectures=("Glm4MoeForCausalLM",),
    read=_read_moe,
    reads=READS,
    rms_norm_eps=1e-5,
    partial_rotary_factor=PARTIAL,
)
