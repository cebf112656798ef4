"""Tokens to vectors."""

import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.parallel.tensor_parallel import TensorRanks


class Embedding:
    """The vectors of the vocabulary, whose rows are divided among ranks."""

    def __init__(self, weight: Tensor, tensor: TensorRanks, vocab_size: int) -> None:
        self.weight = weight  # [our part of the vocabulary, hidden]
        self.tensor = tensor
        self.first = tensor.shard.of(vocab_size).start

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids: [num_tokens]. Returns [num_tokens, hidden]."""
        if self.tensor.shard.size == 1:
            return F.embedding(token_ids, self.weight)
        ours = token_ids - self.first
        is_elsewhere = (ours < 0) | (ours >= len(self.weight))
        vectors = F.embedding(ours.masked_fill_(is_elsewhere, 0), self.weight)
        return self.tensor.sum(vectors.masked_fill_(is_elsewhere.unsqueeze(1), 0))
