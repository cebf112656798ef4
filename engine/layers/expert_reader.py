"""Reader of a layer's experts in a checkpoint."""

from collections.abc import Sequence

import torch

from baton.engine.checkpoint.weights import Stored, Weights, join, peek_all
from baton.engine.config import MoEConfig
from baton.engine.families.tensor_names import ExpertNames
from baton.engine.layers.experts import Expert
from baton.engine.layers.fp8_weight import fp8_weight
from baton.engine.layers.grouped_weight import grouped_weight
from baton.engine.layers.linear import Linear
from baton.engine.parallel.tensor_shard import TensorShard


class ExpertReader:
    """Reads experts of one layer on demand, from separate or fused tensors."""

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        hidden_size: int,
        config: MoEConfig,
        names: ExpertNames,
        shard: TensorShard,
    ) -> None:
        """Check that all experts below `prefix` exist with the right shapes, without reading them.

        shard: selects the inner columns to read of each expert. Raises InvalidCheckpoint.
        """
        self.num_groups = config.num_groups
        self._weights = weights
        self._prefix = prefix
        self._hidden_size = hidden_size
        self._size = config.intermediate_size
        self._ours = shard.of(config.intermediate_size)
        self._num_experts = config.num_experts
        self._names = names
        self._is_fused = f"{prefix}.{names.all_gate_up}" in weights
        for name, shape in self._tensors():
            weights.expect(name, *shape)

    def read(self, expert: int) -> Expert:
        """Return a copy of one expert's weights. Raises InvalidCheckpoint if their file changed since it was mapped."""
        names = [name for name, _ in self._tensors()] if self._is_fused else self._of(expert)
        self._weights.check_unchanged(names)
        read = self._read_fused(expert) if self._is_fused else self._read_own(expert)
        self._weights.check_unchanged(names)  # again: the file may have been written to during the read
        return read

    def _read_own(self, expert: int) -> Expert:
        names, hidden, size, ours = self._of(expert), self._hidden_size, self._size, self._ours
        gate_up = peek_all(self._weights, names[:2], [size, size], hidden, wanted=[(ours,), (ours,)])
        down = peek_all(self._weights, names[2:], [hidden], size, wanted=[(slice(None), ours)])
        return Expert(self._linear(gate_up), self._linear(down))

    def _read_fused(self, expert: int) -> Expert:
        (both, both_shape), (down, down_shape) = self._tensors()
        gates, weights = self._ours, self._weights
        ups = slice(gates.start + self._size, gates.stop + self._size)
        gate_up = [weights.peek(both, *both_shape, part=(expert, rows)) for rows in (gates, ups)]
        columns = weights.peek(down, *down_shape, part=(expert, slice(None), gates))
        return Expert(self._linear(gate_up), self._linear([columns]))

    def _linear(self, parts: Sequence[Stored]) -> Linear:
        """Build a Linear. Experts have few rows each: for them oneDNN's layout is slower than the plain one in fp32,
        and faster in bf16 where the native products are not available.
        """
        weights = self._weights
        stored = fp8_weight(weights, parts, is_expert=True) or grouped_weight(weights, parts)
        if stored is not None:
            return Linear(stored)
        packed, quantization = weights.dtype != torch.float32, weights.quantization
        return Linear(join(weights, parts), packed=packed, quantization=quantization, is_owned=True)

    def _tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return names and shapes of all tensors; if fused, gate and up first, then down."""
        hidden, size = self._hidden_size, self._size
        if self._is_fused:
            return [
                (f"{self._prefix}.{self._names.all_gate_up}", (self._num_experts, 2 * size, hidden)),
                (f"{self._prefix}.{self._names.all_down}", (self._num_experts, hidden, size)),
            ]
        shapes = ((size, hidden), (size, hidden), (hidden, size))
        return [pair for expert in range(self._num_experts) for pair in zip(self._of(expert), shapes, strict=True)]

    def _of(self, expert: int) -> list[str]:
        names = (self._names.gate, self._names.up, self._names.down)
        return [f"{self._prefix}.{self._names.experts}.{expert}.{name}.weight" for name in names]
