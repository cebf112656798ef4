"""Layers with a Mamba-2 mixer in a config.json: their types, sizes and limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from baton.engine.checkpoint.json_object import MAX_NUMBER, JsonObject, shown
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint
from baton.engine.families.options import unsupported
from baton.engine.mamba import Mamba2Config

MAMBA, ATTENTION = "linear_attention", "full_attention"
OLD_TYPES = {"mamba": MAMBA, "attention": ATTENTION}  # as in configs of transformers 4
STEP_LIMITS, AUTO = "time_step_limit", "auto"
INFINITY = {"__float__": "Infinity"}  # as transformers 5 writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class MixerKeys:
    """Keys of a mixer's sizes, which differ between families."""

    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    state: str = "mamba_d_state"
    conv: str = "mamba_d_conv"
    conv_bias: str = "mamba_conv_bias"
    bias: str = "mamba_proj_bias"


def read_types(
    config: JsonObject, shared: ModelConfig, key: str, names: Sequence[str], known: Sequence[str] = (MAMBA, ATTENTION)
) -> list[str]:
    """Return the type of each layer, of those that are known. Raises InvalidCheckpoint or UnsupportedModel.

    names: the value of `key`.
    """
    if len(names) != shared.num_layers:
        raise InvalidCheckpoint(f"{config.source}: {key} has {len(names)} entries for {shared.num_layers} layers")
    types = [OLD_TYPES.get(name, name) for name in names]
    for each in types:
        if each not in known:
            raise unsupported(config, shared.architecture, f"layer type {shown(each)}")
    return types


def with_mixers(
    config: JsonObject, shared: ModelConfig, types: Sequence[str], width: int, keys: MixerKeys | None = None
) -> ModelConfig:
    """Return the config with mixers in the layers of their type, and attention in those of its type only.

    width: of a mixer's heads.
    """
    layers = [layer for layer, each in enumerate(types) if each == MAMBA]
    return replace(
        shared,
        layers_without_attention=frozenset(layer for layer, each in enumerate(types) if each != ATTENTION),
        recurrent=read_mixers(config, layers, width, keys or MixerKeys()) if layers else None,
    )


def expanded(config: JsonObject, key: str = "mamba_expand") -> int:
    """Return the width of a mixer as a multiple of the hidden size."""
    return config.size("hidden_size") * config.size(key, 2)


def read_mixers(config: JsonObject, layers: Sequence[int], width: int, keys: MixerKeys) -> Mamba2Config:
    """Return the sizes of the mixers in `layers`. Raises InvalidCheckpoint for sizes that do not fit."""
    heads, groups = config.size(keys.heads), config.size(keys.groups)
    head_dim = width // heads if config.raw(keys.head_dim) in (None, AUTO) else config.size(keys.head_dim)
    if head_dim * heads != width:
        raise InvalidCheckpoint(
            f"{config.source}: {heads} heads of {head_dim} ({keys.heads}, {keys.head_dim}) are not {width} wide"
        )
    if heads % groups:
        raise InvalidCheckpoint(f"{config.source}: {keys.heads} {heads} is no multiple of {keys.groups} {groups}")
    bias = config.boolean(keys.bias, False)
    return Mamba2Config(
        layers=tuple(layers),
        num_heads=heads,
        head_dim=head_dim,
        num_groups=groups,
        state_dim=config.size(keys.state),
        conv_size=config.size(keys.conv, 4, minimum=2),
        has_conv_bias=config.boolean(keys.conv_bias, True),
        has_input_bias=bias,
        has_output_bias=bias,
        step_limits=_read_step_limits(config),
    )


def _read_step_limits(config: JsonObject) -> tuple[float, float]:
    value = config.raw(STEP_LIMITS)
    if value is None:
        return 0.0, inf
    limits = [_limit(each) for each in value] if isinstance(value, list) else []
    if len(limits) != 2 or not 0 <= limits[0] < limits[1]:
        raise InvalidCheckpoint(
            f"{config.source}: {STEP_LIMITS} must be two numbers from 0 on, the smaller one first, not {shown(value)}"
        )
    return limits[0], limits[1]


def _limit(value: object) -> float:
    """Return a limit, which may be infinite; -1 if the value is not one."""
    if isinstance(value, Mapping):
        return inf if value == INFINITY else -1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        return -1.0
    return float(value) if abs(value) <= MAX_NUMBER else inf
