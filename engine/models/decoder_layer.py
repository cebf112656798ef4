"""One layer of a decoder-only model, composed of the parts in which the families differ."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.layers.layer_inputs import LayerEnd
from baton.engine.layers.norm import NO_NORM, Norm
from baton.engine.ops.base import Rotation


class Attention(Protocol):
    """Attention of one layer, or the recurrent net in its place."""

    def __call__(self, x: Tensor, rotation: Rotation, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Return the attention output for x [num_tokens, hidden], in the same shape."""
        ...


RESIDENT = nullcontext()  # of a layer whose weights are always in memory

# MLP or mixture of experts: [num_tokens, hidden] to the same shape.
FeedForward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Attention and feed-forward, each with a residual connection and with a norm of its input, its output or both.

    A layer may have only one of them.
    """

    attention: Attention | None
    feed_forward: FeedForward | None
    before_attention: Norm
    before_feed_forward: Norm
    after_attention: Norm = NO_NORM
    after_feed_forward: Norm = NO_NORM
    multiplier: float = 1.0  # of both outputs before they are added to the residual stream
    end: LayerEnd | None = None
    residency: AbstractContextManager[None] = RESIDENT  # has the layer's weights in memory while it computes

    def __call__(
        self,
        x: Tensor,
        addend: Tensor | None,
        rotation: Rotation,
        layer_cache: Tensor,
        batch: Batch,
        own: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the layer. Returns the residual stream and the addend for it, both [num_tokens, hidden].

        x: residual stream; addend: output of the previous layer, not added yet. Both may be overwritten. The next norm
        fuses the addition. own: the layer's own input, [num_tokens, layer_input_size].
        """
        with self.residency:
            return self._computed(x, addend, rotation, layer_cache, batch, own)

    def _computed(
        self,
        x: Tensor,
        addend: Tensor | None,
        rotation: Rotation,
        layer_cache: Tensor,
        batch: Batch,
        own: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        if self.attention is not None:
            x, normed = self.before_attention.add(x, addend)
            addend = self._scaled(self.after_attention(self.attention(normed, rotation, layer_cache, batch)))
        if self.feed_forward is not None:
            x, normed = self.before_feed_forward.add(x, addend)
            addend = self._scaled(self.after_feed_forward(self.feed_forward(normed)))
        return (x, addend) if self.end is None or addend is None else (self.end(x + addend, own), None)

    def _scaled(self, output: Tensor) -> Tensor:
        return output if self.multiplier == 1 else output * self.multiplier
