"""Mamba-2 (arXiv 2405.21060): mixers only, without attention and MLPs; Codestral Mamba."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.mamba.layers import MAMBA, MixerKeys, expanded, with_mixers
from baton.engine.families.tensor_names import NormNames, TensorNames

KEYS = MixerKeys(
    heads="num_heads",
    head_dim="head_dim",
    groups="n_groups",
    state="state_size",
    conv="conv_kernel",
    conv_bias="use_conv_bias",
    bias="use_bias",
)
CONTEXT = 1 << 18  # tokens; a state has none of its own


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    layers = range(shared.num_layers)
    return replace(
        with_mixers(config, shared, [MAMBA for _ in layers], expanded(config, "expand"), KEYS),
        rms_norm_eps=config.number("layer_norm_epsilon", 1e-5, minimum=0),
        has_single_parts=True,
        unrotated_layers=frozenset(layers),
    )


MAMBA2 = Family(
    title="Mamba-2",
    architectures=("Mamba2ForCausalLM",),
    read=_read,
    reads=frozenset({"use_bias"}),
    names=TensorNames(norms=NormNames(before_attention="norm"), recurrent="mixer"),
    defaults={
        "num_heads": 128,
        "head_dim": 64,
        "n_groups": 8,
        "state_size": 128,
        "num_attention_heads": 1,
        "intermediate_size": 0,
        "max_position_embeddings": CONTEXT,
    },
    prefixes=(
        *(("backbone.embeddings.", "model.embed_tokens."), ("backbone.embedding.", "model.embed_tokens.")),
        *(("backbone.norm_f.", "model.norm."), ("backbone.", "model.")),
    ),
)
