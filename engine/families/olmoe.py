"""OLMoE (arXiv 2409.02060): experts in every layer, joint norms of queries and keys."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.experts import read_num_experts
from baton.engine.moe import MoEConfig


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    bias = config.boolean("attention_bias", False)
    experts = MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
        norm_topk_prob=config.boolean("norm_topk_prob", False),
    )
    return replace(shared, qk_norm="all", qkv_bias=bias, attention_output_bias=bias, moe=experts)


OLMOE = Family(
    title="OLMoE",
    architectures=("OlmoeForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias"}),
    rms_norm_eps=1e-5,
)
