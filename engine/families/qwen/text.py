"""Qwen2 (arXiv 2407.10671) and Qwen3 (arXiv 2505.09388), dense and with experts."""

from dataclasses import replace

from baton.engine.attention.span import AttentionSpan
from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.experts import read_num_experts
from baton.engine.families.spans import SLIDING, USUAL_WINDOW, WHOLE, read_spans
from baton.engine.families.tensor_names import ExpertNames, TensorNames
from baton.engine.moe import MoEConfig

READS = frozenset({"attention_bias", "layer_types"})


def _read_qwen2(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(shared, qkv_bias=True, spans=_read_spans(config, shared))


def _read_spans(config: JsonObject, shared: ModelConfig) -> tuple[AttentionSpan, ...]:
    """Return the spans of the layers: with `use_sliding_window` those from `max_window_layers` on have a window."""
    if not config.boolean("use_sliding_window", False):
        return ()
    first = config.size("max_window_layers", 28, minimum=0)
    types = [SLIDING if layer >= first else WHOLE for layer in range(shared.num_layers)]
    return read_spans(config, shared.architecture, shared.num_layers, types)


def _read_qwen3(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    bias = config.boolean("attention_bias", False)
    return replace(_read_qwen2(config, shared), qk_norm="head", qkv_bias=bias, attention_output_bias=bias)


def _read_qwen3_moe(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    dense = _read_qwen3(config, shared)
    return replace(dense, moe=_read_experts(config, shared)) if read_num_experts(config) else dense


def _read_qwen2_moe(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    qkv_bias = config.boolean("qkv_bias", True)
    return replace(_read_qwen2(config, shared), qkv_bias=qkv_bias, moe=read_shared_experts(config, shared))


def read_shared_experts(config: JsonObject, shared: ModelConfig) -> MoEConfig | None:
    """Return experts of which one serves all tokens, with a gate; None without experts."""
    if not read_num_experts(config):
        return None
    shared_size = config.size("shared_expert_intermediate_size")
    return replace(_read_experts(config, shared), shared_size=shared_size, has_shared_gate=True)


def _read_experts(config: JsonObject, shared: ModelConfig) -> MoEConfig:
    step, only_dense = config.size("decoder_sparse_step", 1), frozenset(config.integers("mlp_only_layers"))
    dense = (layer for layer in range(shared.num_layers) if layer in only_dense or (layer + 1) % step)
    return MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("moe_intermediate_size"),
        norm_topk_prob=config.boolean("norm_topk_prob", False),
        dense_layers=frozenset(dense),
    )


QWEN2 = Family(
    title="Qwen2 and Qwen2.5",
    architectures=("Qwen2ForCausalLM",),
    read=_read_qwen2,
    reads=frozenset({"layer_types"}),
    defaults=USUAL_WINDOW,
)
QWEN3 = Family(title="Qwen3", architectures=("Qwen3ForCausalLM",), read=_read_qwen3, reads=READS, defaults=USUAL_WINDOW)
QWEN3_MOE = Family(
    title="Qwen3-MoE",
    architectures=("Qwen3MoeForCausalLM",),
    read=_read_qwen3_moe,
    reads=READS,
    defaults=USUAL_WINDOW,
)
QWEN2_MOE = Family(
    title="Qwen1.5-MoE and Qwen2-MoE",
    architectures=("Qwen2MoeForCausalLM",),
    read=_read_qwen2_moe,
    reads=frozenset({"layer_types"}),
    defaults=USUAL_WINDOW,
    names=TensorNames(experts=(ExpertNames(shared="shared_expert"),)),
)
