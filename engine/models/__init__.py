"""Models: decoder-only language models, loaded from a checkpoint of any family."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.checkpoint.placement import Placement
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch, PooledOutput
from baton.engine.experts.group import ExpertGroup
from baton.engine.families.registry import family_of
from baton.engine.families.tensor_names import replaced_kv
from baton.engine.kv.groups import KVGroups
from baton.engine.kv.layout import torch_dtype
from baton.engine.kv.scales import LAST_NAMES
from baton.engine.layers.weights.int8_weight import check_quantization
from baton.engine.lora.adaptable import adapt
from baton.engine.lora.base_checkpoint import BaseCheckpoint
from baton.engine.lora.config import LoraConfig
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.loading import HEAD, ModelLoader
from baton.engine.parallel.tensor_parallel import ONE_RANK, TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard
from baton.engine.vision.encoder import PREFIX as ENCODER


class Model(Protocol):
    """A loaded language model."""

    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """Compute one step: writes the new tokens' KV to the pool, returns fp32 logits [num_logits, vocab]."""
        ...

    def forward_pooled(self, batch: Batch, pool: Tensor) -> PooledOutput:
        """Compute one step like `forward`, and sum the final hidden states of the tokens in `batch.pooled`."""
        ...

    def accept(self, counts: Sequence[int]) -> None:
        """Advance the recurrent states of the last step's sequences with drafts, which it left as they were.

        counts: how many of their new tokens are right; 0 if none is needed.
        """
        ...

    def forward_idle(self) -> None:
        """Take part in a step without tokens on this rank: compute its experts for the other ranks."""
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
    groups: KVGroups | None = None,
    lora: LoraConfig | None = None,
    placement: Placement | None = None,
) -> CausalLM:
    """Load a checkpoint's weights into a model that uses `attention` in every layer.

    groups: KV groups of the layers; default is one. lora: default is without adapters. placement: of the layers'
    weights; default: they stay in the device's memory.

    `on_progress` receives the fraction loaded, up to 1. With a group no experts are read: it places them when it forms.
    A tensor-parallel rank reads only its shard. Raises InvalidCheckpoint naming a tensor that is missing, unexpected or
    of the wrong shape, UnsupportedModel for sizes that cannot be divided and for an unavailable quantization.
    """
    tensor.shard.check(config)
    check_quantization(quantization, device)
    dtype, stored = torch_dtype(config.dtype), config.stored_quantization
    family = family_of(config.architecture)
    prefixes = family.prefixes
    weights = Weights(directory, dtype, device, on_progress, quantization, stored, prefixes, placement)
    with torch.inference_mode():
        model = ModelLoader(weights, config, attention, tensor, group, groups).load()
        if lora is not None and lora.enabled:
            is_tied = config.tie_word_embeddings and not (family.prefers_stored_head and HEAD in weights)
            base = BaseCheckpoint.of(directory, stored, prefixes, is_tied=is_tied)
            adapt(model, config, lora, device, dtype if lora.dtype == "auto" else torch_dtype(lora.dtype), base)
    weights.finish(lambda name: _is_not_of_model(name, config) or _is_of_rank0(name, config, tensor.shard))
    if group is None:
        weights.close()
    else:
        weights.hold()  # experts are read throughout the group's lifetime
    if on_progress is not None:
        on_progress(1.0)
    return model


def _is_of_rank0(name: str, config: ModelConfig, shard: TensorShard) -> bool:
    """Return whether a checkpoint's tensor is needed by rank 0 alone, and this is another."""
    return config.vision is not None and shard.rank > 0 and name.startswith(ENCODER)


def _is_not_of_model(name: str, config: ModelConfig) -> bool:
    """Return whether a checkpoint's tensor is not needed by the model."""
    if name == "lm_head.weight":
        return config.tie_word_embeddings
    if name.endswith(".rotary_emb.inv_freq"):  # old Llama checkpoints; it follows from the config
        return True
    if name.endswith((".q_scale", ".prob_scale")):  # for FP8 attention, which is not implemented here
        return True
    if config.mla is not None and name.endswith(LAST_NAMES):  # latents are not cached in FP8
        return True
    if name.startswith((*family_of(config.architecture).unused, *replaced_kv(config))):
        return True
    first = config.num_layers
    speculative = range(first, first + config.num_nextn_predict_layers)
    return any(name.startswith(f"model.layers.{layer}.") for layer in speculative)
