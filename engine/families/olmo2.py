"""OLMo 2 (arXiv 2501.00656): norms of a layer's outputs instead of its inputs, joint norms of queries and keys."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.tensor_names import NormNames, TensorNames


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    bias = config.boolean("attention_bias", False)
    return replace(shared, qk_norm="all", qkv_bias=bias, attention_output_bias=bias)


OLMO2 = Family(
    title="OLMo 2",
    architectures=("Olmo2ForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias"}),
    names=TensorNames(
        norms=NormNames(
            before_attention=None,
            after_attention="post_attention_layernorm",
            before_feed_forward=None,
            after_feed_forward="post_feedforward_layernorm",
        )
    ),
    rms_norm_eps=1e-5,
)
