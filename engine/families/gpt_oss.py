"""GPT-OSS (arXiv 2508.10925): attention sinks, alternating windows, experts with biases and a clamped SwiGLU."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.experts import read_num_experts
from baton.engine.families.options import unsupported
from baton.engine.families.spans import SLIDING, WHOLE, read_spans
from baton.engine.families.tensor_names import ExpertNames, TensorNames
from baton.engine.moe import MoEConfig

CLAMPED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}  # the only ones that are implemented

ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    for key, implemented in CLAMPED.items():
        if (value := config.number(key, implemented)) != implemented:
            raise unsupported(config, shared.architecture, f"{key} {value:g}")
    bias = config.boolean("attention_bias", True)
    return replace(
        shared,
        qkv_bias=bias,
        attention_output_bias=bias,
        spans=read_spans(
            config,
            shared.architecture,
            shared.num_layers,
            [WHOLE if layer % 2 else SLIDING for layer in range(shared.num_layers)],
        ),
        has_sinks=True,
        moe=MoEConfig(
            num_experts=read_num_experts(config),
            num_experts_per_token=config.integer("num_experts_per_tok", config.integer("experts_per_token", 4)),
            intermediate_size=config.size("intermediate_size"),
            activation="clamped_swiglu",
            has_biases=True,
        ),
    )


GPT_OSS = Family(
    title="GPT-OSS",
    architectures=("GptOssForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias", "layer_types"}),
    defaults={"sliding_window": 128, "rope_parameters": ROPE},
    names=TensorNames(
        experts=(
            ExpertNames(router="router.weight", router_bias="router.bias", all_transposed=True, all_alternate=True),
        )
    ),
    theta=150000.0,
    rms_norm_eps=1e-5,
    head_dim=64,
)
