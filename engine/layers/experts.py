"""The experts of one layer that stand on this rank, and how they are read from a checkpoint."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import MoEConfig
from engine.layers.fp8_weight import fp8_weight
from engine.layers.grouped_product import GroupedProduct, grouped_product
from engine.layers.linear import Linear
from engine.ops.choice import ops_for
from engine.stored_matrix import StoredMatrix
from engine.tensor_shard import TensorShard
from engine.weights import Weights, join, look

# A product's rows come out the same, bit for bit, for every number of rows that is a multiple of this: who else is in
# the batch, and which rank computes an expert, cannot be seen in a token's result. (oneDNN and MKL: multiples of 4.)
ROW_TILE = 8

GROUPED_CAPABILITIES = (9, 10)  # of GPUs on which torch has kernels for products of all experts


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """What a family calls its experts' tensors, under the prefix of the layer's MLP."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"


@dataclass(frozen=True, slots=True)
class Expert:
    """The weights of one expert."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """All slots' weights one after the other, for products of all experts at once."""

    gate_up: GroupedProduct  # hidden to 2 * inner
    down: GroupedProduct  # inner to hidden

    @classmethod
    def of(cls, slots: Sequence[Expert]) -> "GroupedWeights":
        """A copy of their weights."""
        return cls(grouped_product([each.gate_up for each in slots]), grouped_product([each.down for each in slots]))

    def split(self) -> list[Expert]:
        """The experts again, as views."""
        return [Expert(*pair) for pair in zip(self.gate_up.split(), self.down.split(), strict=True)]

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor) -> Tensor:
        """See Experts."""
        ends = torch.as_tensor(sizes, device=rows.device).cumsum(0).to(torch.int32)
        return self.down(ops_for(rows.device).silu_and_mul(self.gate_up(rows, ends)), ends)


@dataclass(frozen=True, slots=True)
class PreparedExperts:
    """The experts of a rank's slots, laid out as they are computed with."""

    slots: tuple[Expert, ...]
    grouped: GroupedWeights | None = None  # the same weights


class Experts:
    """Weights by slot; a slot holds one expert of the layer."""

    def __init__(self, slots: Sequence[Expert], *, is_grouped: bool | None = None) -> None:
        """is_grouped: whether all experts are one product; None: on a GPU, where each one's own would idle most of it.

        On a CPU one product for all took 1.02 to 1.5 times as long as one for each, laid out for oneDNN.
        """
        self._is_grouped = is_grouped
        self._standing = PreparedExperts(())
        self.take(self.prepare(slots))

    @property
    def slots(self) -> tuple[Expert, ...]:
        """The experts, by slot."""
        return self._standing.slots

    def prepare(self, slots: Sequence[Expert]) -> PreparedExperts:
        """Lays out experts that may be taken; for any thread, since it may copy all of them."""
        standing = self._standing
        if len(slots) == len(standing.slots) and all(map(operator.is_, slots, standing.slots)):
            return standing
        is_grouped = self._is_grouped
        if is_grouped is None:
            is_grouped = bool(slots) and _is_faster_grouped(slots[0].gate_up.weight)
        if not (is_grouped and slots):
            return PreparedExperts(tuple(slots))
        grouped = GroupedWeights.of(slots)
        return PreparedExperts(tuple(grouped.split()), grouped)

    def take(self, prepared: PreparedExperts) -> None:
        """These stand in the slots from now on."""
        self._standing = prepared

    @property
    def is_grouped(self) -> bool:
        """Whether all experts are one product."""
        return self._standing.grouped is not None

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor) -> Tensor:
        """rows: [sum(sizes), hidden], the first slot's `sizes[0]` rows first; sizes are multiples of ROW_TILE, or,
        where all experts are one product, any numbers, perhaps on the device.

        Returns the same shape, each row as its slot's expert has it.
        """
        if not rows.shape[0]:
            return rows
        if self._standing.grouped is not None:
            return self._standing.grouped(rows, sizes)
        assert not isinstance(sizes, Tensor), "the host must know which expert gets which rows"
        busy = [(expert, size) for expert, size in zip(self.slots, sizes, strict=True) if size]
        splits = [size for _, size in busy]
        inputs = rows.split_with_sizes(splits)
        gate_up = torch.cat([expert.gate_up(part) for (expert, _), part in zip(busy, inputs, strict=True)])
        inner = ops_for(rows.device).silu_and_mul(gate_up).split_with_sizes(splits)
        return torch.cat([expert.down(part) for (expert, _), part in zip(busy, inner, strict=True)])


def _is_faster_grouped(weight: Tensor) -> bool:
    """Elsewhere torch makes one product of each, and the host waits for every size."""
    if not weight.is_cuda or weight.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        return False
    return torch.cuda.get_device_capability(weight.device)[0] in GROUPED_CAPABILITIES


class ExpertReader:
    """Reads the experts of one layer, each when it is asked for, from tensors of its own or from fused ones."""

    def __init__(
        self,
        weights: Weights,
        prefix: str,
        hidden_size: int,
        config: MoEConfig,
        names: ExpertNames,
        shard: TensorShard,
    ) -> None:
        """shard: which of an expert's inner columns are read.

        Checks that all experts are there and of the right shape (InvalidCheckpoint), and reads none of them."""
        self.num_groups = config.num_groups
        self._weights = weights
        self._prefix = prefix
        self._hidden_size = hidden_size
        self._size = config.intermediate_size
        self._ours = shard.of(config.intermediate_size)
        self._num_experts = config.num_experts
        self._names = names
        self._is_fused = f"{prefix}.gate_up_proj" in weights  # as transformers 5 writes them
        for name, shape in self._tensors():
            weights.expect(name, *shape)

    def read(self, expert: int) -> Expert:
        """One expert's weights, a copy of our own."""
        if self._is_fused:
            return self._read_fused(expert)
        names, hidden, size, ours = self._of(expert), self._hidden_size, self._size, self._ours
        gate_up = look(self._weights, names[:2], [size, size], hidden, wanted=[(ours,), (ours,)])
        down = look(self._weights, names[2:], [hidden], size, wanted=[(slice(None), ours)])
        return Expert(self._linear(gate_up), self._linear(down))

    def _read_fused(self, expert: int) -> Expert:
        (both, both_shape), (down, down_shape) = self._tensors()
        gates, weights = self._ours, self._weights
        ups = slice(gates.start + self._size, gates.stop + self._size)
        gate_up = [weights.peek(both, *both_shape, part=(expert, rows)) for rows in (gates, ups)]
        columns = weights.peek(down, *down_shape, part=(expert, slice(None), gates))
        return Expert(self._linear(gate_up), self._linear([columns]))

    def _linear(self, parts: Sequence[StoredMatrix]) -> Linear:
        """In fp32 oneDNN's layout loses to the plain one for experts, which see few rows each; in bf16 it wins."""
        weights = self._weights
        if (scaled := fp8_weight(weights, parts, is_expert=True)) is not None:
            return Linear(scaled)
        return Linear(join(weights, parts), packed=weights.dtype != torch.float32, quantization=weights.quantization)

    def _tensors(self) -> list[tuple[str, tuple[int, ...]]]:
        """Names and shapes of all tensors; of fused ones first gate and up, then down."""
        hidden, size = self._hidden_size, self._size
        if self._is_fused:
            return [
                (f"{self._prefix}.gate_up_proj", (self._num_experts, 2 * size, hidden)),
                (f"{self._prefix}.down_proj", (self._num_experts, hidden, size)),
            ]
        shapes = ((size, hidden), (size, hidden), (hidden, size))
        return [pair for expert in range(self._num_experts) for pair in zip(self._of(expert), shapes, strict=True)]

    def _of(self, expert: int) -> list[str]:
        names = (self._names.gate, self._names.up, self._names.down)
        return [f"{self._prefix}.{expert}.{name}.weight" for name in names]
