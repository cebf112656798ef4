"""Token embeddings, whose rows are divided among ranks."""

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix
from baton.engine.checkpoint.packed.stored_layout import PackedMatrix
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import ModelConfig
from baton.engine.layers.linear import Addend
from baton.engine.parallel.tensor_parallel import TensorRanks


class Embedding:
    """Token embeddings; the rows of the vocabulary are divided among ranks."""

    def __init__(
        self, weight: Tensor | GroupedMatrix, tensor: TensorRanks, config: ModelConfig, dtype: torch.dtype
    ) -> None:
        """weight: [this rank's part of the vocabulary, hidden]; dtype: of the vectors."""
        self.weight = weight
        self.tensor = tensor
        self.num_tokens = config.vocab_size
        self.vocab = tensor.shard.of(config.vocab_size)
        self.multiplier = config.embedding_multiplier
        self.dtype = dtype
        self.addend: Addend | None = None  # of adapters, for indices of this rank's rows; None: they are not enabled

    def nothing(self) -> Tensor:
        """Return the embeddings of no tokens, [0, hidden]."""
        return self._rows(torch.empty(0, dtype=torch.int64, device=self.device))

    @property
    def device(self) -> torch.device:
        """Device of the weight."""
        return self.weight.device if isinstance(self.weight, Tensor) else self.weight.low.device

    def __call__(self, token_ids: Tensor) -> Tensor:
        """Return the embeddings [num_tokens, hidden] of token_ids [num_tokens]."""
        if self.tensor.shard.size == 1:
            return self._rows(token_ids)
        ours = token_ids - self.vocab.start
        is_elsewhere = (ours < 0) | (token_ids >= self.vocab.stop)
        vectors = self._rows(ours.masked_fill_(is_elsewhere, 0))
        return self.tensor.sum(vectors.masked_fill_(is_elsewhere.unsqueeze(1), 0))

    def _rows(self, indices: Tensor) -> Tensor:
        if isinstance(self.weight, Tensor):
            rows = F.embedding(indices, self.weight)
        else:
            rows = self.weight.dequantised(indices, self.dtype)
        if self.addend is not None:
            rows = self.addend(indices, rows)
        return rows if self.multiplier == 1 else rows * self.multiplier


def load_table(
    weights: Weights, config: ModelConfig, rows: slice, name: str = "model.embed_tokens.weight"
) -> Tensor | GroupedMatrix:
    """Load some rows of an embedding; a packed one stays packed, unless the output layer is to become int8."""
    shape = (config.vocab_size, config.hidden_size)
    stored = weights.peek(name, *shape, part=(rows,))
    if isinstance(stored, PackedMatrix) and weights.quantization != "int8":
        return stored.read().to(weights.device)
    return weights.take(name, *shape, part=(rows,))
