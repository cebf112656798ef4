"""Granite 3, dense and with experts (arXiv 2408.13359): multipliers of embeddings, attention, residuals and logits."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.experts import read_num_experts
from baton.engine.families.tensor_names import ExpertNames, TensorNames
from baton.engine.moe import MoEConfig

MULTIPLIERS = frozenset({"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})
MIN_DIVISOR = 1e-6
STORED = ExpertNames(
    block="block_sparse_moe",
    router="router.layer.weight",
    all_gate_up="input_linear.weight",
    all_down="output_linear.weight",
)


def read_multipliers(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    """Return the config with the multipliers and biases of Granite models."""
    bias = config.boolean("attention_bias", False)
    return replace(
        shared,
        qkv_bias=bias,
        attention_output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        residual_multiplier=config.number("residual_multiplier", 1.0),
        attention_multiplier=config.number("attention_multiplier", 1.0),
        logits_divisor=config.number("logits_scaling", 1.0, minimum=MIN_DIVISOR),
    )


def _read_moe(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    experts = MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
    )
    return replace(read_multipliers(config, shared), moe=experts)


GRANITE = Family(
    title="Granite 3",
    architectures=("GraniteForCausalLM",),
    read=read_multipliers,
    reads=MULTIPLIERS | {"attention_bias", "mlp_bias"},
)
GRANITE_MOE = Family(
    title="Granite 3 with experts",
    architectures=("GraniteMoeForCausalLM",),
    read=_read_moe,
    reads=MULTIPLIERS | {"attention_bias"},
    names=TensorNames(experts=(STORED, ExpertNames(block="block_sparse_moe", router="router.weight"))),
)
