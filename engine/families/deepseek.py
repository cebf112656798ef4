"""DeepSeek-V2 (arXiv 2405.04434), V3 (arXiv 2412.19437), V3.2 and GLM-4.7-Flash: latent attention, shared experts."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.families.base import Family
from baton.engine.families.experts import only, read_corrected_experts, read_num_experts
from baton.engine.families.options import LAYER_TYPES, unsupported
from baton.engine.mla import IndexerConfig, MLAConfig
from baton.engine.moe import MoEConfig

INDEXED = ("indexed_attention", "deepseek_sparse_attention")  # transformers' name, and its older one


def _read_v2(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(
        _read_latent(config, shared), moe=_read_v2_experts(config, shared), mlp_bias=config.boolean("mlp_bias", False)
    )


def _read_v3(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(_read_latent(config, shared), moe=_read_v3_experts(config, shared))


def _read_v32(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    for kind in config.texts(LAYER_TYPES):
        if kind not in INDEXED:
            raise unsupported(config, shared.architecture, f"layer type {shown(kind)}")
    model = _read_v3(config, shared)
    assert model.mla is not None
    indexer = IndexerConfig(
        num_heads=config.size("index_n_heads", 64),
        head_dim=config.size("index_head_dim", 128),
        topk=config.size("index_topk", 2048),
    )
    config.size("q_lora_rank")
    if indexer.head_dim < (rope := model.mla.qk_rope_head_dim):
        raise InvalidCheckpoint(f"{config.source}: index_head_dim {indexer.head_dim} is below qk_rope_head_dim {rope}")
    return replace(model, mla=replace(model.mla, indexer=indexer))


def _read_latent(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    mla = MLAConfig(
        kv_lora_rank=config.size("kv_lora_rank"),
        q_lora_rank=config.size("q_lora_rank") if "q_lora_rank" in config else None,
        qk_nope_head_dim=config.size("qk_nope_head_dim"),
        qk_rope_head_dim=config.size("qk_rope_head_dim"),
        v_head_dim=config.size("v_head_dim"),
    )
    bias = config.boolean("attention_bias", False)
    return replace(
        shared,
        mla=mla,
        head_dim=mla.qk_head_dim,
        num_kv_heads=shared.num_heads,
        rope=replace(shared.rope, rotary_dim=mla.qk_rope_head_dim),
        qkv_bias=bias,
        attention_output_bias=bias,
    )


def _read_v2_experts(config: JsonObject, shared: ModelConfig) -> MoEConfig:
    method = only(config, "topk_method", "greedy", ("greedy", "group_limited_greedy"))
    only(config, "scoring_func", "softmax", ("softmax",))
    if config.boolean("norm_topk_prob", False):
        raise UnsupportedModel(f"{config.source}: norm_topk_prob true is not supported with DeepSeek-V2")
    grouped = method == "group_limited_greedy"
    size = config.size("moe_intermediate_size")
    return MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=size,
        norm_topk_prob=False,
        num_groups=config.integer("n_group") if grouped else 1,
        topk_groups=config.integer("topk_group") if grouped else 1,
        group_score_top=1,
        routed_scaling_factor=config.number("routed_scaling_factor", 1.0),
        shared_size=size * config.size("n_shared_experts", 0, minimum=0),
        dense_layers=_dense_layers(config, shared.num_layers),
    )


def _read_v3_experts(config: JsonObject, shared: ModelConfig) -> MoEConfig:
    only(config, "topk_method", "noaux_tc", ("noaux_tc",))
    only(config, "scoring_func", "sigmoid", ("sigmoid",))
    return read_corrected_experts(config, _dense_layers(config, shared.num_layers), num_shared=0, scaling=None)


def _dense_layers(config: JsonObject, num_layers: int) -> frozenset[int]:
    if kinds := config.texts("mlp_layer_types"):
        if len(kinds) != num_layers or not set(kinds) <= {"dense", "sparse"}:
            raise InvalidCheckpoint(f"{config.source}: mlp_layer_types must be dense or sparse for {num_layers} layers")
        return frozenset(layer for layer, kind in enumerate(kinds) if kind == "dense")
    first_sparse, step = config.size("first_k_dense_replace", minimum=0), config.size("moe_layer_freq", 1)
    return frozenset(layer for layer in range(num_layers) if layer < first_sparse or layer % step)


DEEPSEEK_V2 = Family(
    title="DeepSeek-V2",
    architectures=("DeepseekV2ForCausalLM",),
    read=_read_v2,
    reads=frozenset({"attention_bias", "mlp_bias"}),
    interleaved=True,
)
DEEPSEEK_V3 = Family(
    title="DeepSeek-V3 and R1",
    architectures=("DeepseekV3ForCausalLM",),
    read=_read_v3,
    reads=frozenset({"attention_bias"}),
    interleaved=True,
)
DEEPSEEK_V32 = replace(
    DEEPSEEK_V3,
    title="DeepSeek-V3.2",
    architectures=("DeepseekV32ForCausalLM",),
    read=_read_v32,
    reads=frozenset({"attention_bias", LAYER_TYPES}),
)
GLM4_MOE_LITE = Family(
    title="GLM-4.7-Flash",
    architectures=("Glm4MoeLiteForCausalLM",),
    read=_read_v3,
    reads=frozenset({"attention_bias"}),
    rms_norm_eps=1e-5,
    interleaved=True,
)
