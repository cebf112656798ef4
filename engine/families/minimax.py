"""MiniMax-M2: experts chosen by biased sigmoids, joint norms of queries and keys, half of each head rotated."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.experts import only, read_num_experts
from baton.engine.families.tensor_names import ExpertNames, TensorNames
from baton.engine.moe import MoEConfig

NAMES = ExpertNames(
    block="block_sparse_moe", correction_bias="e_score_correction_bias", gate="w1", up="w3", down="w2"
)  # fmt: skip


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    only(config, "scoring_func", "sigmoid", ("sigmoid",))
    rotary_dim = config.size("rotary_dim", shared.rope.rotary_dim, maximum=shared.head_dim)
    return replace(
        shared,
        qk_norm="all",
        rope=replace(shared.rope, rotary_dim=rotary_dim),
        moe=MoEConfig(
            num_experts=read_num_experts(config),
            num_experts_per_token=config.integer("num_experts_per_tok"),
            intermediate_size=config.size("intermediate_size"),
            scoring="sigmoid",
            score_correction_bias=True,
        ),
    )


MINIMAX_M2 = Family(
    title="MiniMax-M2",
    architectures=("MiniMaxM2ForCausalLM",),
    read=_read,
    reads=frozenset({"partial_rotary_factor"}),
    names=TensorNames(experts=(NAMES, ExpertNames(correction_bias="e_score_correction_bias"))),
    theta=5e6,
    head_dim=128,
)
