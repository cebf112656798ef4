"""ERNIE 4.5, dense and with experts: neighbouring dimensions are rotated."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.tensor_names import ExpertNames, TensorNames
from baton.engine.moe import MoEConfig

THETA, EPS = 5e5, 1e-5  # defaults
NAMES = ExpertNames(correction_bias="moe_statics.e_score_correction_bias", correction_bias_is_row=True)


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    bias = config.boolean("use_bias", False)
    return replace(shared, qkv_bias=bias, attention_output_bias=bias, mlp_bias=bias)


def _read_moe(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    size, start = config.size("moe_intermediate_size"), config.size("moe_layer_start_index", 1, minimum=0)
    end, interval = config.integer("moe_layer_end_index", -1), config.size("moe_layer_interval", 1)
    last = shared.num_layers - 1 if end == -1 else end
    dense = (layer for layer in range(shared.num_layers) if not start <= layer <= last or (layer + 1) % interval)
    experts = MoEConfig(
        num_experts=config.size("moe_num_experts"),
        num_experts_per_token=config.integer("moe_k"),
        intermediate_size=size,
        score_correction_bias=True,
        shared_size=size * config.size("moe_num_shared_experts", 0, minimum=0),
        dense_layers=frozenset(dense),
    )
    return replace(shared, moe=experts)


ERNIE = Family(
    title="ERNIE 4.5",
    architectures=("Ernie4_5ForCausalLM",),
    read=_read,
    reads=frozenset({"use_bias"}),
    theta=THETA,
    rms_norm_eps=EPS,
    tie_word_embeddings=True,
    interleaved=True,
    head_dim=128,
)
ERNIE_MOE = Family(
    title="ERNIE 4.5 with experts",
    architectures=("Ernie4_5_MoeForCausalLM",),
    read=_read_moe,
    names=TensorNames(experts=(NAMES,)),
    theta=THETA,
    rms_norm_eps=EPS,
    tie_word_embeddings=True,
    interleaved=True,
    unused=("model.mtp_",),
)
