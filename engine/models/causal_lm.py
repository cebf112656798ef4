"""A decoder-only language model: embedding, layers, final norm and output layer."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.execution.batch import Batch, PooledOutput
from baton.engine.execution.device import to_device_async
from baton.engine.execution.drafted_states import DraftedStates
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.layer_inputs import LayerInputs
from baton.engine.layers.linear import Projection
from baton.engine.layers.moe import MoE
from baton.engine.layers.norm import RMSNorm
from baton.engine.layers.rotary import RotaryEmbedding
from baton.engine.lora.adapted_layers import AdaptedLayers
from baton.engine.models.decoder_layer import DecoderLayer
from baton.engine.models.hidden_states import HiddenStates
from baton.engine.ops.base import Rotation
from baton.engine.vision.encoder import VisionEncoder


class MissingHead:
    """Output layer of a checkpoint that has none: an embedding model, which cannot generate."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def __call__(self, x: Tensor) -> Tensor:
        """Return zeros [num_tokens, vocab] for x [num_tokens, hidden]; memory measurements need a result."""
        return x.new_zeros(len(x), self.vocab_size)


SLICE_ROWS = 1024  # hidden states that are summed at once


class CausalLM:
    """Decoder-only model: tokens in, logits of the wanted positions out; writes KV to the pool."""

    def __init__(
        self,
        embedding: Embedding,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        head: Projection,
        rotary: Sequence[RotaryEmbedding],
        backend: AttentionBackend,
        kv_places: Sequence[int | None],
        logits_divisor: float = 1.0,
        logits_soft_cap: float | None = None,
        layer_inputs: LayerInputs | None = None,
        rotary_sections: tuple[int, int, int] | None = None,
        vision: VisionEncoder | None = None,
    ) -> None:
        """rotary: of each layer; kv_places: places of the layers' KV in the blocks of their KV groups, None for a layer
        with recurrent state or without attention, which gets the whole pool; logits_soft_cap: bound on the logits, by
        cap * tanh(logit / cap); rotary_sections: see VisionConfig, None if the model takes no images; vision: their
        encoder, which only rank 0 has.
        """
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.head = head
        self.rotary = rotary
        self.backend = backend
        self.kv_places = kv_places
        self.logits_divisor = logits_divisor
        self.logits_soft_cap = logits_soft_cap
        self.layer_inputs = layer_inputs
        self.rotary_sections = rotary_sections
        self.vision = vision
        self.adapted: AdaptedLayers | None = None  # None: steps have no adapters
        self._drafted: DraftedStates | None = None  # of the last step, if it had drafts and the model is recurrent
        self.hidden_states: HiddenStates | None = None  # where steps leave them; None: no draft head reads them

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        """Compute one step. Returns logits [num_logits, vocab] in fp32; pool: see KVCacheLayout, updated in place.

        Tensor-parallel ranks compute the same steps; rank 0 gets all the logits.
        """
        return self.compute(self._planned(batch, pool), pool)

    @torch.inference_mode()
    def forward_pooled(self, batch: Batch, pool: Tensor) -> PooledOutput:
        """Compute one step like `forward`, and sum the final hidden states of the tokens in `batch.pooled`.

        The sums of tensor-parallel ranks are equal, as their residual streams are.
        """
        batch = self._planned(batch, pool)
        x, addend = self._residuals(batch, pool)
        sums = self._sums(x, addend, batch.pooled)  # first: it copies what it reads
        return PooledOutput(self._logits(x, addend, batch.logits_indices), sums)

    @torch.inference_mode()
    def compute(self, batch: Batch, pool: Tensor) -> Tensor:
        """Compute a step whose attention is planned and whose batch is on the model's device; see `forward`."""
        x, addend = self._residuals(batch, pool)
        return self._logits(x, addend, batch.logits_indices)

    @torch.inference_mode()
    def accept(self, counts: Sequence[int]) -> None:
        """Advance the recurrent states of the last step's sequences with drafts by `counts` of their new tokens."""
        drafted, self._drafted = self._drafted, None
        assert drafted is not None, "the last step had no drafts"
        drafted.accept(counts)

    @property
    def has_head(self) -> bool:
        """Whether the checkpoint has an output layer, so that the model can generate."""
        return not isinstance(self.head, MissingHead)

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer has recurrent state, so that a step can be computed only once."""
        return None in self.kv_places

    def _planned(self, batch: Batch, pool: Tensor) -> Batch:
        """Return the batch on the model's device, its attention and adapters planned, its new blocks cleared."""
        states, self._drafted = batch.states, None
        if states is not None and states.drafted:
            self._drafted = DraftedStates(states, batch.query_lens_list, pool)
        batch = replace(batch.on(pool.device), drafted=self._drafted)
        if batch.states is not None:
            batch.states.clear(pool)
        self.backend.plan(batch)
        if self.adapted is not None:
            self.adapted.adapters.plan(batch)
        return batch

    def _residuals(self, batch: Batch, pool: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the residual stream after the last layer and the addend for it, both [num_tokens, hidden]."""
        x = self.embedding(batch.token_ids)  # [num_tokens, hidden]
        if batch.images is not None and batch.image_vectors is not None:
            x = x.index_copy(0, batch.images.rows, batch.image_vectors)
        addend = None
        rotations = {rotary: self._rotation(rotary, batch) for rotary in dict.fromkeys(self.rotary)}
        given = self.layer_inputs
        inputs = [None] * len(self.layers) if given is None else given(batch.token_ids, x)
        kept, states = self.hidden_states if batch.keeps_states else None, []
        parts = zip(self.layers, self.rotary, self.kv_places, inputs, strict=True)
        for index, (layer, rotary, place, own) in enumerate(parts):
            if kept is not None and index in kept.layers:
                states.append(_sum(x, addend))
            cache = pool if place is None else KVCacheLayout.layer_cache(pool, place)
            x, addend = layer(x, addend, rotations[rotary], cache, batch, own)
        if kept is not None:
            kept.store(batch.slot_mapping, states if kept.layers else [self.norm(_sum(x, addend))])
        return x, addend

    def _rotation(self, rotary: RotaryEmbedding, batch: Batch) -> Rotation:
        if batch.images is not None and self.rotary_sections is not None:
            return rotary.at_axes(batch.images.positions, self.rotary_sections)
        return rotary.at(batch.positions if batch.rotary_positions is None else batch.rotary_positions)

    def _logits(self, x: Tensor, addend: Tensor | None, wanted: Tensor) -> Tensor:
        logits = self.head(self._normed(x, addend, wanted)).float()
        if self.logits_divisor != 1:
            logits.div_(self.logits_divisor)
        cap = self.logits_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _normed(self, x: Tensor, addend: Tensor | None, wanted: Tensor) -> Tensor:
        """Return the final hidden states [num_wanted, hidden] of the tokens `wanted`; the inputs stay as they are."""
        return self.norm.add(x[wanted], None if addend is None else addend[wanted])[1]

    def _sums(self, x: Tensor, addend: Tensor | None, ranges: Sequence[range]) -> Tensor:
        """Return the sum of each range's final hidden states: [len(ranges), hidden] float64.

        Sums in float64 are the same however a prompt is divided into chunks, but for roundings far below float32's.
        """
        firsts = to_device_async(torch.tensor([each.start for each in ranges]), x.device)
        sums = self._normed(x, addend, firsts).double()
        for row, each in enumerate(ranges):
            for start in range(each.start + 1, each.stop, SLICE_ROWS):
                rest = torch.arange(start, min(start + SLICE_ROWS, each.stop), device=x.device)
                sums[row] += self._normed(x, addend, rest).double().sum(0)
        return sums

    @torch.inference_mode()
    def forward_idle(self) -> None:
        """Take part in a step without tokens on this rank: compute its experts for the other ranks."""
        if self.adapted is not None:
            self.adapted.adapters.plan(None)
        nothing = self.embedding.nothing()
        for layer in self.layers:
            if isinstance(layer.feed_forward, MoE):
                layer.feed_forward(nothing)


def _sum(x: Tensor, addend: Tensor | None) -> Tensor:
    """Return the sum in memory of its own: the next layer may overwrite both."""
    return x.clone() if addend is None else x + addend
