"""Models by the architecture that a checkpoint names; only the family that is asked for is imported."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.execution.batch import Batch
from baton.engine.experts.group import ExpertGroup
from baton.engine.kv.layout import torch_dtype
from baton.engine.kv.scales import LAST_NAMES
from baton.engine.layers.int8_weight import check_quantization
from baton.engine.models.causal_lm import CausalLM
from baton.engine.parallel.tensor_parallel import ONE_RANK, TensorRanks


class Model(Protocol):
    """A loaded language model."""

    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """One step: writes the new tokens' KV to the pool, returns fp32 logits [num_logits, vocab]."""
        ...

    def forward_idle(self) -> None:
        """A step of the group in which this rank has no tokens: computes its experts for the others."""
        ...


def load_model(
    directory: Path,
    config: ModelConfig,
    device: torch.device,
    attention: AttentionBackend,
    on_progress: Callable[[float], None] | None = None,
    group: ExpertGroup | None = None,
    tensor: TensorRanks = ONE_RANK,
    quantization: str | None = None,
) -> CausalLM:
    """Reads a checkpoint's weights into a model that uses `attention` in every layer.

    `on_progress` is told the part done, up to 1. With a group no experts are read: it gives them out when it forms.
    Of a model that is divided among ranks only our part is read. Raises InvalidCheckpoint naming a tensor that is
    missing, not explained by the config or of the wrong shape, UnsupportedModel for sizes that cannot be divided and
    for a quantization that is not to be had.
    """
    tensor.shard.check(config)
    check_quantization(quantization, device)
    dtype, stored = torch_dtype(config.dtype), config.stored_quantization
    weights = Weights(directory, dtype, device, on_progress, quantization, stored)
    with torch.inference_mode():
        model = _loader(config.architecture, group)(weights, config, attention, tensor)
    weights.finish(lambda name: _is_not_of_model(name, config))
    if group is None:
        weights.close()
    else:
        weights.hold()  # experts are read for as long as the group lives
    if on_progress is not None:
        on_progress(1.0)
    return model


def _loader(
    architecture: str, group: ExpertGroup | None
) -> Callable[[Weights, ModelConfig, AttentionBackend, TensorRanks], CausalLM]:
    match architecture:
        case "LlamaForCausalLM" | "MistralForCausalLM" | "Qwen2ForCausalLM" | "Qwen3ForCausalLM":
            from baton.engine.models import dense

            if group is not None:
                raise UnsupportedModel(f"expert_parallel: {architecture} has no experts")
            return dense.load
        case "MixtralForCausalLM" | "Qwen3MoeForCausalLM":
            from baton.engine.models import sparse

            return partial(sparse.load, group=group)
        case "DeepseekV2ForCausalLM" | "DeepseekV3ForCausalLM":
            from baton.engine.models import deepseek

            return partial(deepseek.load, group=group)
    raise UnsupportedModel(f"architecture {architecture} is not supported")


def _is_not_of_model(name: str, config: ModelConfig) -> bool:
    """Tensors that checkpoints carry though the model does without them."""
    if name == "lm_head.weight":
        return config.tie_word_embeddings
    if name.endswith(".rotary_emb.inv_freq"):  # old Llama checkpoints; it follows from the config
        return True
    if name.endswith((".q_scale", ".prob_scale")):  # of FP8 in which attention here is not computed
        return True
    if config.mla is not None and name.endswith(LAST_NAMES):  # latents are not cached in FP8
        return True
    first = config.num_layers
    speculative = range(first, first + config.num_nextn_predict_layers)
    return any(name.startswith(f"model.layers.{layer}.") for layer in speculative)
