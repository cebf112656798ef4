"""Models that can have adapters, and the addition of adapters to a model."""

from collections.abc import Iterator

import torch

from baton.engine.config import ModelConfig
from baton.engine.families.registry import family_of
from baton.engine.layers.attention import GroupedQueryAttention
from baton.engine.layers.expert_routing import ExpertChoice
from baton.engine.layers.expert_source import ExpertSource
from baton.engine.layers.head_linear import HeadLinear
from baton.engine.layers.latent_attention import LatentAttention
from baton.engine.layers.linear import GatheredProjection, Linear, Projection, SummedProjection
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.layers.mlp import MLP
from baton.engine.layers.moe import GatedMLP, MoE, SharedGate
from baton.engine.layers.parallel_experts import ParallelExperts
from baton.engine.layers.recurrent.delta_net import GatedDeltaNet
from baton.engine.layers.recurrent.mamba import Mamba2Mixer
from baton.engine.lora.adaptable_layer import AdaptableExperts, AdaptableLayer, Inputs
from baton.engine.lora.adapted_layers import AdaptedLayers
from baton.engine.lora.adapter_files import AdaptedModel
from baton.engine.lora.base import ModelAdapters
from baton.engine.lora.base_checkpoint import EMBEDDING, HEAD, BaseCheckpoint
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.dora import DoraFactors
from baton.engine.lora.expert_catalog import ExpertCatalog
from baton.engine.lora.fit import ChangeableModules, shapes_of
from baton.engine.lora.segmented import SegmentedAdapters
from baton.engine.lora.stacked import StackedAdapters
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.decoder_layer import Attention, FeedForward
from baton.engine.models.parallel_mixers import ParallelMixers

IMAGES = "visual."  # beginning of the names of an image encoder's modules


def adapt(
    model: CausalLM, shape: ModelConfig, config: LoraConfig, device: torch.device, dtype: torch.dtype,
    base: BaseCheckpoint,
) -> None:  # fmt: skip
    """Let a model's steps add what adapters do. dtype: of their matrices."""
    layers = list(_layers(model, shape))
    mixtures = _mixtures(model, len(layers))
    sources = [layer.source for layer in layers]
    of_experts = [layer.source for each in mixtures for layer in each.layers]
    adapters: ModelAdapters = (
        SegmentedAdapters(layers, mixtures)
        if device.type == "cpu"
        else StackedAdapters(layers, config, dtype, mixtures)
    )
    family = family_of(shape.architecture)
    experts = ExpertCatalog.of([_source(each) for each in _moes(model)], family.names.experts)
    absorbed = frozenset(shapes_of(each.source for each in layers if isinstance(each.layer, HeadLinear)))
    modules = ChangeableModules(
        {**shapes_of(sources), **experts.shapes},
        experts.num_experts,
        absorbed,
        (*family.unused, IMAGES),
    )
    adapted = AdaptedModel(base, modules, experts)
    is_gguf = base.quantization is not None and base.quantization.method == "gguf"
    paired = shape.head_dim if is_gguf and shape.rope.interleaved else None
    all_sources = [*sources, *of_experts]
    dora = DoraFactors(base, all_sources)
    model.adapted = AdaptedLayers(all_sources, adapted, dora, dtype, adapters, paired)


def _layers(model: CausalLM, shape: ModelConfig) -> Iterator[AdaptableLayer]:
    vocab = model.embedding.vocab
    inputs = [ProjectionRows(EMBEDDING, shape.hidden_size, slice(None))]
    yield AdaptableLayer(model.embedding, LinearSource(inputs, shape.vocab_size, vocab), Inputs.TOKEN_IDS)
    for layer in model.layers:
        mixer = () if layer.attention is None else _of_mixer(layer.attention)
        for linear in (*mixer, *_of_feed_forward(layer.feed_forward)):
            assert linear.source is not None, "it was not read from a checkpoint"
            yield AdaptableLayer(linear, linear.source)
    head = model.head.part if isinstance(model.head, GatheredProjection) else model.head
    if isinstance(head, Linear):  # otherwise the model has none
        outputs = [ProjectionRows(HEAD, shape.vocab_size, vocab)]
        yield AdaptableLayer(head, LinearSource(outputs, shape.hidden_size, slice(None)), Inputs.LAST_STATES)


def _mixtures(model: CausalLM, first: int) -> list[AdaptableExperts]:
    """Return the experts of all layers, none if several workers share them.

    first: place of their products, after those of all other layers.
    """
    mixtures: list[AdaptableExperts] = []
    for moe in _moes(model):
        if _source(moe).here is not None:
            mixtures.append(AdaptableExperts.of(moe, first))
            first = mixtures[-1].places.stop
    return mixtures


def _moes(model: CausalLM) -> Iterator[MoE]:
    for layer in model.layers:
        feed_forward = layer.feed_forward
        moe = feed_forward.experts if isinstance(feed_forward, ParallelExperts) else feed_forward
        if isinstance(moe, MoE):
            yield moe


def _source(moe: MoE) -> ExpertSource:
    assert moe.source is not None, "it was not read from a checkpoint"
    return moe.source


def _of_feed_forward(feed_forward: FeedForward | None) -> Iterator[Linear | ExpertChoice | SharedGate]:
    """Yield the projections of a dense MLP, or those of a mixture for all tokens."""
    match feed_forward:
        case ParallelExperts():
            yield from _of_feed_forward(feed_forward.dense)
            yield from _of_feed_forward(feed_forward.experts)
        case MoE():
            yield feed_forward.choice
            yield from _of_feed_forward(feed_forward.shared)
        case GatedMLP():
            yield feed_forward.gate
            yield from _of_feed_forward(feed_forward.mlp)
        case SummedProjection():
            yield from _of_feed_forward(feed_forward.part)
        case MLP():
            yield feed_forward.gate_up
            yield feed_forward.down
        case _:
            pass  # there is none


def _of_mixer(mixer: Attention) -> Iterator[Linear | HeadLinear]:
    """Yield the projections of attention, of a recurrent net, or of both."""
    match mixer:
        case GroupedQueryAttention():
            yield mixer.qkv
            yield _linear(mixer.output)
        case LatentAttention():
            yield mixer.query.up
            if mixer.query.down is not None:
                yield mixer.query.down
            yield mixer.compress
            yield mixer.keys
            yield mixer.values
            yield _linear(mixer.output)
            if (indexer := mixer.indexer) is not None:
                yield from (indexer.query, indexer.key, indexer.head_weights)
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
            raise AssertionError(f"adapters do not know the layers of {type(mixer).__name__}")


def _linear(projection: Projection) -> Linear:
    linear = projection.part if isinstance(projection, SummedProjection) else projection
    assert isinstance(linear, Linear)
    return linear
