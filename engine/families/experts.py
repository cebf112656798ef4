"""Mixture of experts in a config.json: what families have in common."""

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import MoEConfig
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

NUM_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


def read_num_experts(config: JsonObject) -> int:
    """Return the number of routed experts, under any of its names; 0 means a dense model."""
    return config.size(next((key for key in NUM_EXPERTS if key in config), NUM_EXPERTS[-1]), minimum=0)


def only(config: JsonObject, key: str, default: str, supported: tuple[str, ...]) -> str:
    """Return a text that must be one of `supported`. Raises UnsupportedModel."""
    value = config.text(key, default)
    if value not in supported:
        raise UnsupportedModel(f"{config.source}: {key} {shown(value)} is not supported, only {', '.join(supported)}")
    return value


def check_experts(source: str, moe: MoEConfig) -> None:
    """Raise InvalidCheckpoint if the experts do not divide into groups, or if there are too few to choose from."""
    group_size = moe.num_experts // max(moe.num_groups, 1)
    if moe.num_experts < 1 or moe.num_groups < 1 or moe.num_experts % moe.num_groups:
        raise InvalidCheckpoint(f"{source}: {moe.num_experts} experts do not divide into {moe.num_groups} groups")
    if not 1 <= moe.topk_groups <= moe.num_groups or (moe.num_groups > 1 and group_size < moe.group_score_top):
        raise InvalidCheckpoint(f"{source}: topk_group {moe.topk_groups} does not fit {moe.num_groups} groups")
    if not 1 <= moe.num_experts_per_token <= group_size * moe.topk_groups:
        raise InvalidCheckpoint(f"{source}: cannot choose {moe.num_experts_per_token} of {moe.num_experts} experts")
