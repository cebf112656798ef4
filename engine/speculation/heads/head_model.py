"""The network of a draft head: a token and the hidden state in front of it in, logits of the next token out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.attention.base import AttentionBackend
from baton.engine.execution.batch import Batch
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.layers.embedding import Embedding
from baton.engine.layers.linear import Projection
from baton.engine.layers.norm import Norm
from baton.engine.layers.rotary import RotaryEmbedding
from baton.engine.models.decoder_layer import DecoderLayer

# From embeddings and hidden states, both [num_tokens, hidden], to the residual stream and the addend for it.
Join = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """Output of a draft head."""

    logits: Tensor  # [num_logits, vocab] fp32, of the whole vocabulary
    states: Tensor  # [num_logits, hidden]: hidden states in front of the next tokens, as the head estimates them


class JoinedNorm:
    """Norm in front of the first layer of EAGLE-3: of the hidden state and of the embedding, side by side."""

    def __init__(self, of_embedding: Norm, of_state: Norm, *, is_before_residual: bool) -> None:
        """is_before_residual: the residual stream begins with the hidden state's norm instead of with the state."""
        self._of_embedding = of_embedding
        self._of_state = of_state
        self._is_before_residual = is_before_residual

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of hidden states without tokens."""
        return self._of_state(x)

    def add(self, x: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the residual stream [num_tokens, hidden] and the attention's input [num_tokens, 2 * hidden].

        x: hidden states; addend: embeddings.
        """
        assert addend is not None, "the first layer of EAGLE-3 gets embeddings"
        normed = self._of_state(x)
        return normed if self._is_before_residual else x, torch.cat([self._of_embedding(addend), normed], dim=1)


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Start of EAGLE and of multi-token prediction: one projection of embedding and hidden state."""

    project: Projection  # from [num_tokens, 2 * hidden]
    of_embedding: Norm
    of_state: Norm

    def __call__(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, None]:
        """Return the input of the first layer."""
        return self.project(torch.cat([self.of_embedding(embeddings), self.of_state(states)], dim=1)), None


def side_by_side(embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs of `JoinedNorm`."""
    return states, embeddings


class HeadModel:
    """A draft head with its own layers. It has all of them, whatever shard of the model a rank has."""

    def __init__(
        self,
        embedding: Embedding,
        join: Join,
        layers: Sequence[DecoderLayer],
        norm: Norm,
        output: Projection,
        rotary: RotaryEmbedding,
        backend: AttentionBackend,
        token_ids: Tensor | None = None,
        *,
        passes_normed: bool = False,
    ) -> None:
        """token_ids: [head_vocab] int64, the tokens that the head can draft; None: all of them; passes_normed: its
        hidden states for the next tokens are those after the last norm.
        """
        self.embedding = embedding
        self._join = join
        self._layers = layers
        self._norm = norm
        self._output = output
        self._rotary = rotary
        self._backend = backend
        self._token_ids = token_ids
        self._passes_normed = passes_normed

    @torch.inference_mode()
    def forward(self, batch: Batch, states: Tensor, pool: Tensor) -> HeadOutput:
        """Compute tokens with the hidden states in front of them, [num_tokens, hidden]; writes KV to the pool."""
        batch = batch.on(pool.device)
        self._backend.plan(batch)
        x, addend = self._join(self.embedding(batch.token_ids), states)
        rotation = self._rotary.at(batch.positions)
        for place, layer in enumerate(self._layers):
            x, addend = layer(x, addend, rotation, KVCacheLayout.layer_cache(pool, place), batch)
        wanted = batch.logits_indices
        states, normed = self._norm.add(x[wanted], None if addend is None else addend[wanted])
        return HeadOutput(self._logits(normed), normed if self._passes_normed else states)

    def _logits(self, normed: Tensor) -> Tensor:
        logits = self._output(normed).float()
        if self._token_ids is None:
            return logits
        whole = logits.new_full((len(logits), self.embedding.num_tokens), -torch.inf)
        return whole.index_copy_(1, self._token_ids, logits)
