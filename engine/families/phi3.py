"""Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219, 2412.08905): fused projections, LongRoPE, part of each head rotated."""

from dataclasses import replace

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.families.base import Family
from baton.engine.families.spans import read_window
from baton.engine.families.tensor_names import TensorNames


def _read(config: JsonObject, shared: ModelConfig) -> ModelConfig:
    return replace(shared, spans=read_window(config, shared))


PHI3 = Family(
    title="Phi-3, Phi-3.5 and Phi-4",
    architectures=("Phi3ForCausalLM",),
    read=_read,
    reads=frozenset({"partial_rotary_factor"}),
    names=TensorNames(qkv="qkv_proj", gate_up="gate_up_proj"),
    rms_norm_eps=1e-5,
)
