"""Reader of a layer's experts in a checkpoint."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.engine.checkpoint.joined_tensors import join, peek_all
from baton.engine.checkpoint.stacked_matrices import StackedMatrices
from baton.engine.checkpoint.weights import Stored, Weights
from baton.engine.families.tensor_names import ExpertNames
from baton.engine.layers.expert_source import fused_rows
from baton.engine.layers.experts import Expert
from baton.engine.layers.linear import Linear, placed
from baton.engine.layers.weights.column_part import ColumnPart
from baton.engine.layers.weights.fp8_weight import fp8_weight
from baton.engine.layers.weights.grouped_weight import grouped_weight
from baton.engine.moe import MoEConfig
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
        self._activation = config.activation
        self._has_biases, self._is_first = config.has_biases, shard.rank == 0
        count, transposed = config.num_experts, names.all_transposed
        self._gate_up = StackedMatrices(
            weights, f"{prefix}.{names.all_gate_up}", (count, 2 * self._size, hidden_size), transposed
        )
        self._down = StackedMatrices(
            weights, f"{prefix}.{names.all_down}", (count, hidden_size, self._size), transposed
        )
        self._is_fused = self._gate_up.is_stored
        self._expect()

    def read(self, expert: int) -> Expert:
        """Return a copy of one expert's weights. Raises InvalidCheckpoint if their file changed since it was mapped."""
        names = self._of_all if self._is_fused else self._of(expert)
        self._weights.check_unchanged(names)
        read = self._read_fused(expert) if self._is_fused else self._read_own(expert)
        self._weights.check_unchanged(names)  # again: the file may have been written to during the read
        return read

    def _read_own(self, expert: int) -> Expert:
        names, hidden, size, ours = self._of(expert), self._hidden_size, self._size, self._ours
        *firsts, last = names
        gate_up = peek_all(self._weights, firsts, [size] * len(firsts), hidden, wanted=[(ours,)] * len(firsts))

        def read_down(columns: slice) -> list[Stored]:
            return peek_all(self._weights, [last], [hidden], size, wanted=[(slice(None), columns)])

        return Expert(self._linear(expert, gate_up), self._down_linear(expert, read_down), self._activation)

    def _read_fused(self, expert: int) -> Expert:
        every, rows = slice(None), fused_rows(self._names, self._size, self._ours)
        gate_up = [self._gate_up.part(expert, each, every) for each in rows]
        biases: list[Tensor | None] = [None, None]
        if self._has_biases:
            first, second = (self._bias(each) for each in (self._gate_up, self._down))
            taken = [self._weights.take(*first, part=(expert, each)) for each in rows]
            biases = [torch.cat(taken), self._weights.take(*second, part=(expert,)) if self._is_first else None]

        def read_down(columns: slice) -> list[Stored]:
            return [self._down.part(expert, every, columns)]

        return Expert(
            self._linear(expert, gate_up, biases[0]), self._down_linear(expert, read_down, biases[1]), self._activation
        )

    def _down_linear(
        self, expert: int, read: Callable[[slice], Sequence[Stored]], bias: Tensor | None = None
    ) -> Linear:
        part = ColumnPart.of(read, self._size, self._ours)
        return self._linear(expert, part.stored(), bias, part)

    def _linear(
        self, expert: int, parts: Sequence[Stored], bias: Tensor | None = None, part: ColumnPart | None = None
    ) -> Linear:
        """Build a Linear. Experts have few rows each: for them oneDNN's layout is slower than the plain one in fp32,
        and faster in bf16 where the native products are not available.
        """
        weights = self._weights

        def make() -> Linear:
            stored = fp8_weight(weights, parts, is_expert=True) or grouped_weight(weights, parts)
            if stored is None and part is not None:
                stored = part.rounded(weights, weights.quantization)
            if stored is not None:
                return Linear(stored, bias)
            packed, quantization = weights.dtype != torch.float32, weights.quantization
            return Linear(join(weights, parts), bias, packed=packed, quantization=quantization, is_owned=True)

        return placed(weights, make, bias, expert)

    def _expect(self) -> None:
        if self._is_fused:
            for stacked in (self._gate_up, self._down):
                stacked.expect()
                if self._has_biases:
                    self._weights.expect(*self._bias(stacked))
            return
        hidden, size = self._hidden_size, self._size
        for expert in range(self._num_experts):
            *firsts, last = self._of(expert)
            for name in firsts:
                self._weights.expect(name, size, hidden)
            self._weights.expect(last, hidden, size)

    def _bias(self, stacked: StackedMatrices) -> tuple[str, int, int]:
        """Return name and shape of the biases of all experts."""
        return f"{stacked.name}_bias", *stacked.shape[:2]

    @property
    def _of_all(self) -> list[str]:
        """Names of the tensors with all experts."""
        stacked = (self._gate_up, self._down)
        biases = [self._bias(each)[0] for each in stacked] if self._has_biases else []
        return [*self._gate_up.names, *self._down.names, *biases]

    def _of(self, expert: int) -> list[str]:
        has_gate = self._activation != "relu2"
        names = (*((self._names.gate,) if has_gate else ()), self._names.up, self._names.down)
        return [f"{self._prefix}.{self._names.experts}.{expert}.{name}.weight" for name in names]
