"""Models that can have adapters, and the addition of adapters to a model."""

from collections.abc import Iterator

import torch

from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import UnsupportedModel
from baton.engine.layers.attention import GroupedQueryAttention
from baton.engine.layers.linear import GatheredProjection, Linear, Projection, SummedProjection
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.layers.mlp import MLP
from baton.engine.layers.parallel_experts import ParallelExperts
from baton.engine.layers.recurrent.delta_net import GatedDeltaNet
from baton.engine.layers.recurrent.mamba import Mamba2Mixer
from baton.engine.lora.adaptable_layer import AdaptableLayer, Inputs
from baton.engine.lora.adapted_layers import AdaptedLayers
from baton.engine.lora.base import ModelAdapters
from baton.engine.lora.base_checkpoint import EMBEDDING, HEAD, BaseCheckpoint
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.dora import DoraFactors
from baton.engine.lora.segmented import SegmentedAdapters
from baton.engine.lora.stacked import StackedAdapters
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.decoder_layer import Attention
from baton.engine.models.parallel_mixers import ParallelMixers


def check_adaptable(config: EngineConfig, model: ModelConfig, *, is_expert_parallel: bool) -> None:
    """Raise UnsupportedModel if adapters are enabled for a model or a group that cannot have them."""
    refused = {
        "multi-head latent attention": model.mla is not None,
        "image inputs": model.vision is not None,
        "expert_parallel": is_expert_parallel,
    }
    for name, is_there in refused.items():
        if config.enable_lora and is_there:
            raise UnsupportedModel(f"enable_lora is not supported with {name} ({model.architecture})")


def adapt(
    model: CausalLM, shape: ModelConfig, config: LoraConfig, device: torch.device, dtype: torch.dtype,
    base: BaseCheckpoint,
) -> None:  # fmt: skip
    """Let a model's steps add what adapters do. dtype: of their matrices."""
    layers = list(_layers(model, shape))
    sources = [layer.source for layer in layers]
    adapters: ModelAdapters = SegmentedAdapters(layers)
    if device.type != "cpu":
        adapters = StackedAdapters(layers, config, dtype)
    is_gguf = base.quantization is not None and base.quantization.method == "gguf"
    paired = shape.head_dim if is_gguf and shape.rope.interleaved else None
    model.adapted = AdaptedLayers(sources, base, DoraFactors(base, sources), dtype, adapters, paired)


def _layers(model: CausalLM, shape: ModelConfig) -> Iterator[AdaptableLayer]:
    vocab = model.embedding.vocab
    inputs = [ProjectionRows(EMBEDDING, shape.hidden_size, slice(None))]
    yield AdaptableLayer(model.embedding, LinearSource(inputs, shape.vocab_size, vocab), Inputs.TOKEN_IDS)
    for linear in _linears(model):
        assert linear.source is not None, "it was not read from a checkpoint"
        yield AdaptableLayer(linear, linear.source)
    head = model.head.part if isinstance(model.head, GatheredProjection) else model.head
    if isinstance(head, Linear):  # otherwise the model has none
        outputs = [ProjectionRows(HEAD, shape.vocab_size, vocab)]
        yield AdaptableLayer(head, LinearSource(outputs, shape.hidden_size, slice(None)), Inputs.LAST_STATES)


def _linears(model: CausalLM) -> Iterator[Linear]:
    for layer in model.layers:
        if layer.attention is not None:
            yield from _of_mixer(layer.attention)
        feed_forward = layer.feed_forward
        dense = feed_forward.dense if isinstance(feed_forward, ParallelExperts) else feed_forward
        mlp = dense.part if isinstance(dense, SummedProjection) else dense
        if isinstance(mlp, MLP):  # otherwise experts, or none
            yield mlp.gate_up
            yield mlp.down


def _of_mixer(mixer: Attention) -> Iterator[Linear]:
    """Yield the projections of attention, of a recurrent net, or of both."""
    match mixer:
        case GroupedQueryAttention():
            yield mixer.qkv
            yield _linear(mixer.output)
        case GatedDeltaNet():
            yield mixer.inputs.mixed
            yield mixer.inputs.rates
            yield _linear(mixer.output.projection)
        case Mamba2Mixer():
            yield mixer.inputs.mixed
            yield mixer.inputs.steps
            yield _linear(mixer.output.projection)
        case ParallelMixers():
            yield from _of_mixer(mixer.attention)
            yield from _of_mixer(mixer.net)
        case _:
            raise AssertionError("see check_adaptable")


def _linear(projection: Projection) -> Linear:
    linear = projection.part if isinstance(projection, SummedProjection) else projection
    assert isinstance(linear, Linear)
    return linear
