"""Mistral (arXiv 2310.06825) and Mixtral (arXiv 2401.04088); the first ones have a sliding window."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig, MoEConfig
from baton.engine.families.base import Family
from baton.engine.families.experts import read_num_experts
from baton.engine.families.spans import read_window
from baton.engine.families.tensor_names import ExpertNames, TensorNames


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(shared, spans=read_window(config, shared.num_layers))


def _read_mixtral(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    experts = MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
    )
    return replace(_read(config, shared), moe=experts)


MISTRAL = Family(title="Mistral", architectures=("MistralForCausalLM",), read=_read)
MIXTRAL = Family(
    title="Mixtral",
    architectures=("MixtralForCausalLM",),
    read=_read_mixtral,
    names=TensorNames(experts=(ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2"), ExpertNames())),
    theta=1e6,
    rms_norm_eps=1e-5,
)
