"""Mistral (arXiv 2310.06825), Mixtral (arXiv 2401.04088), and the text of Mistral 3 and Ministral 3."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import LANGUAGE_MODEL, Family
from baton.engine.families.experts import only, read_num_experts
from baton.engine.families.spans import USUAL_WINDOW, read_window
from baton.engine.families.tensor_names import ExpertNames, TensorNames
from baton.engine.moe import MoEConfig

TEXT_MODELS = ("mistral", "ministral3")


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(shared, spans=read_window(config, shared))


def _read_mixtral(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    experts = MoEConfig(
        num_experts=read_num_experts(config),
        num_experts_per_token=config.integer("num_experts_per_tok"),
        intermediate_size=config.size("intermediate_size"),
    )
    return replace(_read(config, shared), moe=experts)


def _read_text(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    only(config, "model_type", "mistral", TEXT_MODELS)
    return replace(_read(config, shared), tie_word_embeddings=True)


MISTRAL = Family(title="Mistral", architectures=("MistralForCausalLM",), read=_read, defaults=USUAL_WINDOW)
MIXTRAL = Family(
    title="Mixtral",
    architectures=("MixtralForCausalLM",),
    read=_read_mixtral,
    names=TensorNames(experts=(ExpertNames(block="block_sparse_moe", gate="w1", up="w3", down="w2"), ExpertNames())),
    theta=1e6,
    rms_norm_eps=1e-5,
)
MINISTRAL3 = Family(
    title="Ministral 3 (text)",
    architectures=("Ministral3ForCausalLM",),
    read=_read,
    reads=frozenset({"llama_4_scaling_beta"}),
    rms_norm_eps=1e-5,
    head_dim=128,
)
MISTRAL3 = Family(
    title="Mistral Small 3.1, 3.2 (text)",
    architectures=("Mistral3ForConditionalGeneration",),
    read=_read_text,
    reads=frozenset({"llama_4_scaling_beta"}),
    rms_norm_eps=1e-5,
    head_dim=128,
    has_text_config=True,
    prefers_stored_head=True,
    prefixes=LANGUAGE_MODEL,
    unused=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)
