"""Seed-OSS: Llama's structure, with biases of queries, keys and values."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(
        shared,
        qkv_bias=config.boolean("attention_bias", True),
        attention_output_bias=config.boolean("attention_out_bias", False),
        mlp_bias=config.boolean("mlp_bias", False),
    )


SEED_OSS = Family(
    title="Seed-OSS",
    architectures=("SeedOssForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias", "mlp_bias"}),
    head_dim=128,
)
