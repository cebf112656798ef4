"""Reader of the mixture of experts in a config.json: Mixtral, Qwen3-MoE, DeepSeek-V2 and DeepSeek-V3."""

from collections.abc import Callable

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import MoEConfig
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel


def read_moe(config: JsonObject, architecture: str, num_layers: int) -> MoEConfig | None:
    """Return the mixture of experts; None for a dense model. Raises UnsupportedModel for unsupported routing."""
    reader = _READERS.get(architecture)
    moe = reader(config, num_layers) if reader else None
    if moe is not None:
        _check(config, moe)
    return moe


def _mixtral(config: JsonObject, num_layers: int) -> MoEConfig:
    del num_layers  # every layer is sparse
    return MoEConfig(
        num_experts=_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
    )


def _qwen3(config: JsonObject, num_layers: int) -> MoEConfig | None:
    if _num_experts(config) == 0:
        return None
    step, only_dense = config.size("decoder_sparse_step", 1), frozenset(config.integers("mlp_only_layers"))
    dense = (layer for layer in range(num_layers) if layer in only_dense or (layer + 1) % step)
    return MoEConfig(
        num_experts=_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("moe_intermediate_size"),
        norm_topk_prob=config.boolean("norm_topk_prob", False),
        dense_layers=frozenset(dense),
    )


def _deepseek_v2(config: JsonObject, num_layers: int) -> MoEConfig:
    method = config.text("topk_method", "greedy")
    _only(config, "topk_method", method, ("greedy", "group_limited_greedy"))
    _only(config, "scoring_func", config.text("scoring_func", "softmax"), ("softmax",))
    if config.boolean("norm_topk_prob", False):
        raise UnsupportedModel(f"{config.source}: norm_topk_prob true is not supported with DeepSeek-V2")
    grouped = method == "group_limited_greedy"
    return MoEConfig(
        num_experts=_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("moe_intermediate_size"),
        norm_topk_prob=False,
        num_groups=config.integer("n_group") if grouped else 1,
        topk_groups=config.integer("topk_group") if grouped else 1,
        group_score_top=1,
        routed_scaling_factor=config.number("routed_scaling_factor", 1.0),
        num_shared_experts=config.size("n_shared_experts", 0, minimum=0),
        dense_layers=_deepseek_dense_layers(config, num_layers),
    )


def _deepseek_v3(config: JsonObject, num_layers: int) -> MoEConfig:
    _only(config, "topk_method", config.text("topk_method", "noaux_tc"), ("noaux_tc",))
    _only(config, "scoring_func", config.text("scoring_func", "sigmoid"), ("sigmoid",))
    return MoEConfig(
        num_experts=_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("moe_intermediate_size"),
        norm_topk_prob=config.boolean("norm_topk_prob", True),
        scoring="sigmoid",
        score_correction_bias=True,
        num_groups=config.integer("n_group"),
        topk_groups=config.integer("topk_group"),
        group_score_top=2,
        routed_scaling_factor=config.number("routed_scaling_factor"),
        num_shared_experts=config.size("n_shared_experts", 0, minimum=0),
        dense_layers=_deepseek_dense_layers(config, num_layers),
    )


_READERS: dict[str, Callable[[JsonObject, int], MoEConfig | None]] = {
    "MixtralForCausalLM": _mixtral,
    "Qwen3MoeForCausalLM": _qwen3,
    "DeepseekV2ForCausalLM": _deepseek_v2,
    "DeepseekV3ForCausalLM": _deepseek_v3,
}


def _num_experts(config: JsonObject) -> int:
    keys = ("n_routed_experts", "num_local_experts", "num_experts")
    return config.size(next((key for key in keys if key in config), keys[-1]), minimum=0)


def _deepseek_dense_layers(config: JsonObject, num_layers: int) -> frozenset[int]:
    first_sparse, step = config.size("first_k_dense_replace", minimum=0), config.size("moe_layer_freq", 1)
    return frozenset(layer for layer in range(num_layers) if layer < first_sparse or layer % step)


def _only(config: JsonObject, key: str, value: str, supported: tuple[str, ...]) -> None:
    if value not in supported:
        raise UnsupportedModel(f"{config.source}: {key} {shown(value)} is not supported, only {', '.join(supported)}")


def _check(config: JsonObject, moe: MoEConfig) -> None:
    group_size = moe.num_experts // max(moe.num_groups, 1)
    if moe.num_experts < 1 or moe.num_groups < 1 or moe.num_experts % moe.num_groups:
        raise InvalidCheckpoint(
            f"{config.source}: {moe.num_experts} experts do not divide into {moe.num_groups} groups"
        )
    if not 1 <= moe.topk_groups <= moe.num_groups or (moe.num_groups > 1 and group_size < moe.group_score_top):
        raise InvalidCheckpoint(f"{config.source}: topk_group {moe.topk_groups} does not fit {moe.num_groups} groups")
    if not 1 <= moe.num_experts_per_token <= group_size * moe.topk_groups:
        raise InvalidCheckpoint(
            f"{config.source}: cannot choose {moe.num_experts_per_token} of {moe.num_experts} experts"
        )
