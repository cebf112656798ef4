"""Nemotron-H, Nemotron Nano 2 and 3 (arXiv 2504.03624): layers that are a mixer, attention, an MLP or experts."""

from collections.abc import Mapping
from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.base import Family
from baton.engine.families.experts import only, read_corrected_experts
from baton.engine.families.mamba.layers import ATTENTION, MAMBA, MixerKeys, read_types, with_mixers
from baton.engine.families.options import refuse_window, unsupported
from baton.engine.families.tensor_names import ExpertNames, NormNames, TensorNames
from baton.engine.moe import MoEConfig

TYPES, PATTERN, LAYERS = "layers_block_type", "hybrid_override_pattern", "num_hidden_layers"
MLP, EXPERTS = "mlp", "moe"
LETTERS = {"M": MAMBA, "*": ATTENTION, "-": MLP, "E": EXPERTS}
KEYS = MixerKeys(
    heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    groups="n_groups",
    state="ssm_state_size",
    conv="conv_kernel",
    conv_bias="use_conv_bias",
    bias="use_bias",
)
EPS = "layer_norm_epsilon"


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    refuse_window(config, shared.architecture)
    only(config, "mamba_hidden_act", "silu", ("silu",))
    only(config, "mlp_hidden_act", "relu2", ("relu2",))
    key = TYPES if TYPES in config else PATTERN
    types = read_types(config, shared, key, _types(config), tuple(LETTERS.values()))
    if not {MAMBA, ATTENTION}.intersection(types):
        raise unsupported(config, shared.architecture, "a model with neither mixers nor attention")
    bias, width = config.boolean("attention_bias", False), config.size(KEYS.heads) * config.size(KEYS.head_dim)
    return replace(
        with_mixers(config, shared, types, width, KEYS),
        rms_norm_eps=config.number(EPS, 1e-5, minimum=0),
        has_single_parts=True,
        unrotated_layers=frozenset(range(shared.num_layers)),
        qkv_bias=bias,
        attention_output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        activation="relu2",
        moe=_read_experts(config, shared, types) if EXPERTS in types else None,
    )


def _read_experts(config: JsonObject, shared: ModelConfig, types: list[str]) -> MoEConfig:
    if config.raw("moe_latent_size") is not None:
        raise unsupported(config, shared.architecture, f"moe_latent_size {shown(config.raw('moe_latent_size'))}")
    others = frozenset(layer for layer, each in enumerate(types) if each != EXPERTS)
    size = config.size("moe_shared_expert_intermediate_size", 7688)
    return replace(
        read_corrected_experts(config, others, num_shared=1, scaling=1.0), shared_size=size, activation="relu2"
    )


def _types(config: JsonObject) -> list[str]:
    """Return the names of the layers' types: a list of them, or a pattern with a letter for each."""
    if TYPES in config:
        return config.texts(TYPES)
    pattern = config.text(PATTERN)
    if unknown := set(pattern) - LETTERS.keys():
        raise InvalidCheckpoint(
            f"{config.source}: {PATTERN} has {shown(min(unknown))}, but may only have {', '.join(LETTERS)}"
        )
    return [LETTERS[letter] for letter in pattern]


def _derived(config: JsonObject) -> Mapping[str, object]:
    """Return the number of layers, which transformers 5 does not write, and the width of attention's heads."""
    head_dim = config.raw("attention_head_dim")
    return {LAYERS: len(_types(config)), **({} if head_dim is None else {"head_dim": head_dim})}


NEMOTRON_H = Family(
    title="Nemotron-H, Nemotron Nano 2 and 3",
    architectures=("NemotronHForCausalLM",),
    read=_read,
    reads=frozenset({"attention_bias", "mlp_bias", "use_bias"}),
    names=TensorNames(
        norms=NormNames(before_attention="norm", before_feed_forward="norm"),
        attention="mixer",
        recurrent="mixer",
        mlp="mixer",
        experts=(ExpertNames(block="mixer"),),
    ),
    head_dim=128,
    derived=_derived,
    prefixes=(
        *(
            ("backbone.embeddings.", "model.embed_tokens."),
            ("backbone.norm_f.", "model.norm."),
            ("backbone.", "model."),
        ),
        *(("model.embeddings.", "model.embed_tokens."), ("model.norm_f.", "model.norm.")),
    ),
    unused=("mtp.",),
)
