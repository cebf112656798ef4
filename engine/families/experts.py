"""Mixture of experts in a config.json: what families have in common."""

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.moe import MoEConfig

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


def read_corrected_experts(
    config: JsonObject, dense_layers: frozenset[int], *, num_shared: int, scaling: float | None
) -> MoEConfig:
    """Return experts that are chosen by the sigmoid of their scores plus a correction (DeepSeek-V3, section 2.1.2).

    num_shared, scaling: defaults of absent keys; None: the key is required.
    """
    size = config.size("moe_intermediate_size")
    return MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=size,
        norm_topk_prob=config.boolean("norm_topk_prob", True),
        scoring="sigmoid",
        score_correction_bias=True,
        num_groups=config.integer("n_group", 1),
        topk_groups=config.integer("topk_group", 1),
        group_score_top=2,
        routed_scaling_factor=config.number("routed_scaling_factor", scaling),
        shared_size=size * config.size("n_shared_experts", num_shared, minimum=0),
        dense_layers=dense_layers,
    )


def check_experts(source: str, moe: MoEConfig) -> None:
    """Raise InvalidCheckpoint if the experts do not divide into groups, or if there are too few to choose from."""
    group_size = moe.num_experts // max(moe.num_groups, 1)
    if moe.num_experts < 1 or moe.num_groups < 1 or moe.num_experts % moe.num_groups:
        raise InvalidCheckpoint(f"{source}: {moe.num_experts} experts do not divide into {moe.num_groups} groups")
    if not 1 <= moe.topk_groups <= moe.num_groups or (moe.num_groups > 1 and group_size < moe.group_score_top):
        raise InvalidCheckpoint(f"{source}: topk_group {moe.topk_groups} does not fit {moe.num_groups} groups")
    if not 1 <= moe.num_experts_per_token <= group_size * moe.topk_groups:
        raise InvalidCheckpoint(f"{source}: cannot choose {moe.num_experts_per_token} of {moe.num_experts} experts")
