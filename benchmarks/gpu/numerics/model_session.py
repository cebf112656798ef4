"""Manual driver of a loaded model with paged KV, on any device."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.attention.factory import attention_for
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.models import load_model
from benchmarks.gpu.numerics.paged_batch import Lengths, batch_of

NUM_BLOCKS = 257


class ModelSession:
    """Model, a pool with stale data, and its sequences."""

    def __init__(
        self,
        directory: Path,
        device: torch.device,
        dtype: str,
        kv_dtype: str = "auto",
        block_size: int = 16,
        quantization: str | None = None,
    ) -> None:
        self.config = read_model_config(directory, dtype, on_cpu=device.type == "cpu")
        self.block_size = block_size
        attention = attention_for(self.config, block_size, device, kv_dtype)
        self.model = load_model(directory, self.config, device, attention, quantization=quantization)
        layout = KVCacheLayout.of(self.config, block_size, kv_dtype=kv_dtype)
        leavings = torch.randn(layout.pool_shape(NUM_BLOCKS), device=device) * 5
        self.pool = leavings.to(layout.dtype)
        self._free = list(range(1, NUM_BLOCKS))
        self._tables: dict[str, list[int]] = {}
        self._lens: dict[str, int] = {}

    def step(self, new_tokens: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Compute each sequence's new tokens, and return the logits after the last: [vocab] on the CPU."""
        names = sorted(new_tokens, key=lambda name: len(new_tokens[name]) > 1)
        for name in names:
            self._lens[name] = self._lens.get(name, 0) + len(new_tokens[name])
            table = self._tables.setdefault(name, [])
            # Alternate between both ends, so that consecutive blocks are not adjacent in the pool.
            lacking = -(-self._lens[name] // self.block_size) - len(table)
            table += [self._free.pop(0 if len(self._free) % 2 else -1) for _ in range(lacking)]
        sequences = [Lengths(len(new_tokens[name]), self._lens[name]) for name in names]
        token_ids = [token for name in names for token in new_tokens[name]]
        tables = [self._tables[name] for name in names]
        batch = batch_of(sequences, tables, token_ids, self.block_size)
        return dict(zip(names, self.model.forward(batch, self.pool).cpu(), strict=True))
