"""Granite 4: Mamba-2 mixers in most layers, attention in the others; dense, or with experts and a shared one."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.experts import read_num_experts
from baton.engine.families.granite import MULTIPLIERS, read_multipliers
from baton.engine.families.mamba.layers import MAMBA, expanded, read_types, with_mixers
from baton.engine.families.options import LAYER_TYPES
from baton.engine.families.tensor_names import ExpertNames, TensorNames
from baton.engine.moe import MoEConfig

SHARED, FUSED, DOWN = "shared_mlp", "input_linear", "output_linear"
EXPERTS = ExpertNames(
    block="",
    router="block_sparse_moe.router.layer.weight",
    all_gate_up="block_sparse_moe.input_linear.weight",
    all_down="block_sparse_moe.output_linear.weight",
    shared=SHARED,
    shared_gate_up=FUSED,
    shared_down=DOWN,
)
RENAMED = replace(  # by transformers 5
    EXPERTS,
    router="block_sparse_moe.router.weight",
    experts="block_sparse_moe.experts",
    all_gate_up="block_sparse_moe.experts.gate_up_proj",
    all_down="block_sparse_moe.experts.down_proj",
)


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    every = range(shared.num_layers)
    types = read_types(config, shared, LAYER_TYPES, config.texts(LAYER_TYPES) or [MAMBA for _ in every])
    rotates = config.text("position_embedding_type", "nope") == "rope"
    size = config.size("shared_intermediate_size", 1024)
    return replace(
        with_mixers(config, read_multipliers(config, shared), types, expanded(config)),
        intermediate_size=size,
        unrotated_layers=frozenset(() if rotates else every),
        moe=_read_experts(config, size) if read_num_experts(config) else None,
    )


def _read_experts(config: JsonObject, shared_size: int) -> MoEConfig:
    return MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
        shared_size=shared_size,
    )


GRANITE_HYBRID = Family(
    title="Granite 4",
    architectures=("GraniteMoeHybridForCausalLM",),
    read=_read,
    reads=MULTIPLIERS | {"attention_bias", LAYER_TYPES},
    names=TensorNames(recurrent="mamba", mlp=SHARED, gate_up=FUSED, down=DOWN, experts=(EXPERTS, RENAMED)),
    defaults={"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "num_local_experts": 8},
)
