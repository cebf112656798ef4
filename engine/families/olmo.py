"""OLMo 2 (arXiv 2501.00656) and OLMo 3 (arXiv 2512.13961): norms of a layer's outputs instead of its inputs, joint
norms of queries and keys; in OLMo 3, three of four layers have a sliding window.
"""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.spans import SLIDING, USUAL_WINDOW, WHOLE, read_local_rope, read_spans
from baton.engine.families.tensor_names import NormNames, TensorNames


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    bias = config.boolean("attention_bias", False)
    return replace(shared, qk_norm="all", qkv_bias=bias, attention_output_bias=bias)


def _read_olmo3(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    types = [SLIDING if (layer + 1) % 4 else WHOLE for layer in range(shared.num_layers)]
    spans = read_spans(config, shared.architecture, shared.num_layers, types)
    local_rope = read_local_rope(config, shared.head_dim, shared.rope.theta)
    return replace(_read(config, shared), spans=spans, local_rope=local_rope)


NAMES = TensorNames(
    norms=NormNames(
        before_attention=None,
        after_attention="post_attention_layernorm",
        before_feed_forward=None,
        after_feed_forward="post_feedforward_layernorm",
    )
)
OLMO2 = Family(
    title="OLMo 2",
    architectures=("Olmo2ForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias"}),
    names=NAMES,
    rms_norm_eps=1e-5,
)
OLMO3 = Family(
    title="OLMo 3",
    architectures=("Olmo3ForCausalLM",),
    read=_read_olmo3,
    reads=frozenset({"attention_bias", "layer_types"}),
    names=NAMES,
    theta=5e5,
    rms_norm_eps=1e-5,
    rope_of=WHOLE,
    defaults=USUAL_WINDOW,
)
