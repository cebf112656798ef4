"""Falcon-H1 (arXiv 2507.22448): attention and a Mamba-2 mixer next to each other in all layers, with muP's factors."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.base import Family
from baton.engine.families.mamba.layers import MixerKeys, expanded, read_mixers
from baton.engine.families.options import unsupported
from baton.engine.families.tensor_names import NormNames, TensorNames
from baton.engine.mamba import GatePlace, InputMultipliers, Mamba2Config

WIDTH, MLP_FACTORS, MIXER_FACTORS = "mamba_d_ssm", "mlp_multipliers", "ssm_multipliers"
MIN_FACTOR = 1e-9  # of the logits, which are divided by its inverse
FACTORS = frozenset(
    {
        *("embedding_multiplier", "lm_head_multiplier", "key_multiplier", MLP_FACTORS, MIXER_FACTORS),
        *("attention_in_multiplier", "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"),
    }
)


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    bias, factor = config.boolean("attention_bias", False), config.number("attention_in_multiplier", 1.0)
    if bias and factor != 1:
        raise unsupported(config, shared.architecture, f"attention_bias with attention_in_multiplier {factor:g}")
    gate, down = _factors(config, MLP_FACTORS, 2)
    # Without biases, a factor on the input of attention is one on its scores, squared, and on its output.
    scale = shared.attention_scale * config.number("key_multiplier", 1.0) * factor**2
    return replace(
        shared,
        recurrent=_read_mixers(config, shared.num_layers),
        qkv_bias=bias,
        attention_output_bias=bias,
        mlp_bias=config.boolean("mlp_bias", False),
        mlp_multipliers=(gate, down),
        embedding_multiplier=config.number("embedding_multiplier", 1.0),
        attention_multiplier=scale,
        attention_output_multiplier=factor * config.number("attention_out_multiplier", 1.0),
        logits_divisor=1 / config.number("lm_head_multiplier", 1.0, minimum=MIN_FACTOR),
    )


def _read_mixers(config: JsonObject, num_layers: int) -> Mamba2Config:
    width = config.size(WIDTH) if WIDTH in config else expanded(config)
    mixers = read_mixers(config, range(num_layers), width, MixerKeys())
    is_normed_first = config.boolean("mamba_norm_before_gate", True)
    place: GatePlace = "after_norm" if is_normed_first else "before_norm"
    gates, values, writes, reads, steps = _factors(config, MIXER_FACTORS, 5)
    return replace(
        mixers,
        has_output_bias=config.boolean("projectors_bias", False),
        gate_place=place if config.boolean("mamba_rms_norm", False) else "no_norm",
        multipliers=InputMultipliers(
            input=config.number("ssm_in_multiplier", 1.0),
            gates=gates,
            values=values,
            writes=writes,
            reads=reads,
            steps=steps,
        ),
        output_multiplier=config.number("ssm_out_multiplier", 1.0),
    )


def _factors(config: JsonObject, key: str, count: int) -> list[float]:
    factors = config.numbers(key) or [1.0] * count
    if len(factors) != count:
        raise InvalidCheckpoint(f"{config.source}: {key} must be {count} numbers, not {shown(factors)}")
    return factors


FALCON_H1 = Family(
    title="Falcon-H1",
    architectures=("FalconH1ForCausalLM",),
    read=_read,
    reads=FACTORS | {"attention_bias", "mlp_bias"},
    names=TensorNames(norms=NormNames(before_feed_forward="pre_ff_layernorm"), recurrent="mamba", mlp="feed_forward"),
    rms_norm_eps=1e-5,
    defaults={"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, WIDTH: 1024},
    prefixes=(("model.final_layernorm.", "model.norm."),),
)
