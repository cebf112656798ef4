"""Llama 2 and 3 (arXiv 2302.13971, 2407.21783): the structure that the other families vary."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    bias = config.boolean("attention_bias", False)
    return replace(
        shared, qkv_bias=bias, attention_output_bias=bias, mlp_bias=config.boolean("mlp_bias", False)
    )  # fmt: skip


LLAMA = Family(
    title="Llama 2 and 3",
    architectures=("LlamaForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias", "mlp_bias"}),
)
