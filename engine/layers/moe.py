"""Mixture of experts."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.config import MoEConfig
from baton.engine.experts.dispatch import ExpertExchange, LocalExchange
from baton.engine.experts.group import ExpertGroup
from baton.engine.experts.permutation import ExpertRows, rows_by_slot, weighted_sum
from baton.engine.layers.expert_reader import ExpertNames, ExpertReader
from baton.engine.layers.expert_routing import ExpertChoice
from baton.engine.layers.experts import ROW_TILE, Experts
from baton.engine.layers.mlp import MLP, load_partial_mlp
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard


class DeviceExchange:
    """All experts stand here, one product for all of them: only the device need know how many rows each one gets."""

    def __init__(self, num_experts: int) -> None:
        self._num_experts = num_experts

    def dispatch(self, x: Tensor, chosen: Tensor) -> "DeviceDispatch":
        """See ExpertExchange."""
        slots = chosen.flatten()
        order = slots.argsort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        # Of which there is a count on a GPU too, unlike bincount, without waiting for the greatest.
        sizes = slots.new_zeros(self._num_experts).scatter_add_(0, slots, torch.ones_like(slots))
        return DeviceDispatch(ExpertRows(x[order // chosen.shape[1]], sizes, places))


@dataclass(frozen=True, slots=True)
class DeviceDispatch:
    """See Dispatch."""

    rows: ExpertRows

    def arrive(self) -> ExpertRows:
        """At once."""
        return self.rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """See Dispatch."""
        return weighted_sum(outputs, self.rows.places, weights)


def run_on_side_stream(compute: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Computes beside what is launched from now on, if the device is a GPU; what is returned waits for it.

    What `compute` reads must stay as it is, and its memory held, until then. On a CPU it is computed in its turn.
    """
    if device.type != "cuda":
        result = compute()
        return lambda: result
    side, main = _side_stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        computed = compute()

    def wait() -> Tensor:
        # Memory that is given back goes to what is next begun there, and that waits for the main stream.
        main.wait_stream(side)
        return computed

    return wait


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all layers: what a stream has given back, no other can have."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class PartExchange:
    """An ExpertExchange that sends nothing: what other ranks' experts give is zero here, and the ranks' sum has it."""

    def __init__(self, first: int, count: int, row_tile: int = ROW_TILE) -> None:
        """Our experts are `count` ones from `first` on; they stand in slots in their order. row_tile: see Experts."""
        self._first = first
        self._count = count
        self._row_tile = row_tile

    def dispatch(self, x: Tensor, chosen: Tensor) -> "PartDispatch":
        """See ExpertExchange."""
        num_chosen = chosen.shape[1]
        slots = chosen.flatten() - self._first
        entries = torch.nonzero((slots >= 0) & (slots < self._count)).flatten()  # those of ours
        rows = rows_by_slot(x, entries // num_chosen, slots[entries], self._count, self._row_tile)
        return PartDispatch(rows, entries)


@dataclass(frozen=True, slots=True)
class PartDispatch:
    """See Dispatch."""

    rows: ExpertRows
    entries: Tensor  # which of all (token, chosen expert) have rows here

    def arrive(self) -> ExpertRows:
        """At once."""
        return self.rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """See Dispatch."""
        results = outputs.new_zeros(weights.numel(), outputs.shape[1])
        results[self.entries] = outputs[self.rows.places]
        return weighted_sum(results, None, weights)


class MoE:
    """Routed experts, and shared ones that every token passes."""

    def __init__(
        self,
        choice: ExpertChoice,
        experts: Experts,
        exchange: ExpertExchange,
        shared: MLP | None,
        tensor: TensorRanks,
    ) -> None:
        self.choice = choice
        self.experts = experts
        self.exchange = exchange
        self.shared = shared
        self.tensor = tensor  # who has the other experts, or the rest of every expert's inner columns

    @property
    def stays_on_device(self) -> bool:
        """Whether the host need not wait for which experts tokens choose."""
        return isinstance(self.exchange, DeviceExchange)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, hidden], perhaps of no tokens. Returns the same shape."""
        weights, chosen = self.choice(x)
        dispatch = self.exchange.dispatch(x, chosen)
        shared_mlp = self.shared
        # While tokens are on their way; on a GPU beside the routed experts too, which leave room there.
        shared = run_on_side_stream(lambda: shared_mlp(x), x.device) if shared_mlp is not None and len(x) else None
        arrived = dispatch.arrive()
        routed = dispatch.combine(self.experts(arrived.rows, arrived.sizes), weights)
        return self.tensor.sum(routed if shared is None else routed + shared())


def load_moe(
    weights: Weights,
    prefix: str,
    hidden_size: int,
    config: MoEConfig,
    names: ExpertNames,
    tensor: TensorRanks,
    group: ExpertGroup | None,
    *,
    bias: bool = False,
) -> MoE:
    """The experts under `prefix`: all of them, or, with a group, those that it will give to this rank."""
    gate = weights.take(f"{prefix}.gate.weight", config.num_experts, hidden_size, dtype=torch.float32)
    correction_bias = None
    if config.score_correction_bias:
        correction_bias = weights.take(
            f"{prefix}.gate.e_score_correction_bias", config.num_experts, dtype=torch.float32
        )
    shared_mlp = None
    if config.num_shared_experts:
        size = config.intermediate_size * config.num_shared_experts
        shared_mlp = load_partial_mlp(weights, f"{prefix}.shared_experts", hidden_size, size, tensor.shard, bias=bias)
    choice = ExpertChoice(config, gate, correction_bias)
    shard = tensor.shard
    reader = ExpertReader(weights, f"{prefix}.experts", hidden_size, config, names, shard.of_an_expert)
    if group is not None:
        layer = group.add_layer(reader, config.num_experts)
        return MoE(choice, layer.experts, layer.exchange, shared_mlp, tensor)
    here = shard.experts_of(config.num_experts)
    experts = Experts([reader.read(expert) for expert in here])
    return MoE(choice, experts, _exchange(experts, here, config, shard), shared_mlp, tensor)


def _exchange(experts: Experts, here: range, config: MoEConfig, shard: TensorShard) -> ExpertExchange:
    """How tokens get to experts that are not of a group."""
    if shard.has_whole_experts:
        return PartExchange(here.start, len(here), experts.row_tile)
    if experts.is_grouped:
        return DeviceExchange(config.num_experts)
    return LocalExchange(config.num_experts, experts.row_tile)
