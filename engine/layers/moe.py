"""Mixture-of-experts layer, and the exchanges that need no expert-parallel group."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.experts.dispatch import ExpertExchange, LocalExchange
from baton.engine.experts.group import ExpertGroup
from baton.engine.experts.permutation import ExpertRows, rows_by_slot, weighted_sum
from baton.engine.families.tensor_names import ExpertNames
from baton.engine.layers.expert_reader import ExpertReader
from baton.engine.layers.expert_routing import ExpertChoice, load_choice
from baton.engine.layers.expert_source import ExpertSource
from baton.engine.layers.experts import ROW_TILE, Experts
from baton.engine.layers.linear import Addend, Projection
from baton.engine.layers.linear_source import LinearSource, source_of_tensor
from baton.engine.layers.mlp import MLP, load_partial_mlp
from baton.engine.moe import MoEConfig
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard


class DeviceExchange:
    """Exchange for grouped experts that are all on this GPU; the host need not know how many rows each one gets."""

    def __init__(self, num_experts: int) -> None:
        self._num_experts = num_experts

    def dispatch(self, x: Tensor, chosen: Tensor) -> "DeviceDispatch":
        """Sort the tokens' rows by expert."""
        slots, order = chosen.flatten().sort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        # Unlike bincount, this does not make the host wait for the largest value on a GPU.
        each = torch.arange(self._num_experts, device=slots.device)
        ends = torch.searchsorted(slots, each, right=True, out_int32=True)
        return DeviceDispatch(ExpertRows(x[order // chosen.shape[1]], ends, places))


@dataclass(frozen=True, slots=True)
class DeviceDispatch:
    """Dispatch that stays on the device."""

    rows: ExpertRows

    def receive(self) -> ExpertRows:
        """Return the rows without waiting."""
        return self.rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sums of the expert outputs, [num_tokens, hidden]."""
        return weighted_sum(outputs, self.rows.places, weights)


def run_on_side_stream(compute: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Run `compute` on a side stream, concurrently with later work; returns a function that waits for its result.

    The inputs of `compute` must stay unchanged and allocated until then. On a CPU it runs immediately.
    """
    if device.type != "cuda":
        result = compute()
        return lambda: result
    side, main = _side_stream(device), torch.cuda.current_stream(device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        computed = compute()

    def wait() -> Tensor:
        # Freed memory of the side stream is reused by its next work, which waits for the main stream.
        main.wait_stream(side)
        return computed

    return wait


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the side stream shared by all layers: a stream's freed memory can be reused only by that stream."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class PartExchange:
    """Exchange for tensor-parallel ranks with whole experts: sends nothing, and the ranks' outputs are summed later."""

    def __init__(self, first: int, count: int, row_tile: int = ROW_TILE) -> None:
        """Create the exchange for `count` experts from `first` on, in slots in this order. row_tile: see Experts."""
        self._first = first
        self._count = count
        self._row_tile = row_tile

    def dispatch(self, x: Tensor, chosen: Tensor) -> "PartDispatch":
        """Sort the tokens' rows by expert."""
        num_chosen = chosen.shape[1]
        slots = chosen.flatten() - self._first
        entries = torch.nonzero((slots >= 0) & (slots < self._count)).flatten()  # those for this rank's experts
        rows = rows_by_slot(x, entries // num_chosen, slots[entries], self._count, self._row_tile)
        return PartDispatch(rows, entries)


@dataclass(frozen=True, slots=True)
class PartDispatch:
    """Dispatch to this rank's experts only."""

    rows: ExpertRows
    entries: Tensor  # indices of the (token, chosen expert) pairs with rows here

    def receive(self) -> ExpertRows:
        """Return the rows without waiting."""
        return self.rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sums of the expert outputs, [num_tokens, hidden]."""
        results = outputs.new_zeros(weights.numel(), outputs.shape[1])
        results[self.entries] = outputs[self.rows.places]
        return weighted_sum(results, None, weights)


class SharedGate:
    """Product with one row of weights, in fp32."""

    bias = None

    def __init__(self, weight: Tensor, source: LinearSource) -> None:
        """weight: [1, hidden] fp32."""
        self.weight = weight
        self.source = source
        self.addend: Addend | None = None  # of adapters; None: they are not enabled

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, 1] fp32 for x [num_tokens, hidden]."""
        output = (x.float() * self.weight).sum(1, keepdim=True)
        return output if self.addend is None else self.addend(x, output)


class GatedMLP:
    """MLP whose output is scaled by the sigmoid of a product with its input (Qwen2-MoE)."""

    def __init__(self, mlp: MLP, gate: SharedGate) -> None:
        self.mlp = mlp
        self.gate = gate

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape."""
        # In float64: torch's vector and scalar code differ in their last bits, which the conversion back rounds away.
        scale = self.gate(x).double().sigmoid()
        return self.mlp(x) * scale.to(x.dtype)


class MixtureAdapters(Protocol):
    """Adapters of the routed experts of one layer."""

    def dispatch(self, moe: "MoE", x: Tensor, chosen: Tensor, weights: Tensor) -> Callable[[], Tensor] | None:
        """Start to send tokens to their experts, as `MoE.dispatch`; None if no adapter of the step changes them."""
        ...


class MoE:
    """Routed experts, plus optional shared experts for every token."""

    def __init__(
        self,
        choice: ExpertChoice,
        experts: Experts,
        exchange: ExpertExchange,
        shared: Projection | None,
        tensor: TensorRanks,
        source: ExpertSource | None = None,
    ) -> None:
        """source: of the experts; None: they were not read from a checkpoint."""
        self.source = source
        self.adapters: MixtureAdapters | None = None  # None: they are not enabled
        self.choice = choice
        self.experts = experts
        self.exchange = exchange
        self.shared = shared
        self.tensor = tensor  # ranks with the other experts, or with the other inner columns of every expert

    @property
    def stays_on_device(self) -> bool:
        """Whether the host need not wait for the routing."""
        return isinstance(self.exchange, DeviceExchange)

    def __call__(self, x: Tensor, routed_by: Tensor | None = None) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape; num_tokens may be 0.

        routed_by: input of the router, if it is not x.
        """
        weights, chosen = self.choice(x if routed_by is None else routed_by)
        inputs = x
        if self.choice.config.weights_inputs:
            inputs, weights = x * weights.to(x.dtype), torch.ones_like(weights)
        compute = self._dispatch_adapted(inputs, chosen, weights) or self.dispatch(inputs, chosen, weights)
        shared_mlp = self.shared
        # Overlaps the dispatch; on a GPU also the routed experts, which do not fill the GPU.
        shared = run_on_side_stream(lambda: shared_mlp(x), x.device) if shared_mlp is not None and len(x) else None
        routed = compute()
        return self.tensor.sum(routed if shared is None else routed + shared())

    def _dispatch_adapted(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Callable[[], Tensor] | None:
        return None if self.adapters is None else self.adapters.dispatch(self, x, chosen, weights)

    def dispatch(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Callable[[], Tensor]:
        """Start to send tokens to their experts; returns a function that computes these and their weighted sums."""
        few = self.experts.for_few(x, chosen) if self.stays_on_device else None
        if few is not None:
            return lambda: few(x, chosen, weights)
        dispatch = self.exchange.dispatch(x, chosen)

        def compute() -> Tensor:
            arrived = dispatch.receive()
            return dispatch.combine(self.experts(arrived.rows, arrived.sizes), weights)

        return compute


def load_moe(
    weights: Weights,
    layer: str,
    names: ExpertNames,
    hidden_size: int,
    config: MoEConfig,
    tensor: TensorRanks,
    group: ExpertGroup | None,
    *,
    bias: bool = False,
) -> MoE:
    """Load the experts of a layer; with a group none, since it reads this rank's experts when it forms.

    bias: of the shared experts.
    """
    prefix, shard = f"{layer}.{names.block}" if names.block else layer, tensor.shard
    choice = load_choice(weights, prefix, names, hidden_size, config)
    shared = _load_shared(weights, prefix, names, hidden_size, config, shard, bias=bias)
    reader = ExpertReader(weights, prefix, hidden_size, config, names, shard.per_expert)
    source = ExpertSource(prefix, names, config, hidden_size, None, shard.per_expert.of(config.intermediate_size))
    if group is not None:
        grouped = group.add_layer(reader, config.num_experts)
        return MoE(choice, grouped.experts, grouped.exchange, shared, tensor, source)
    here = shard.experts_of(config.num_experts)
    experts = Experts([reader.read(expert) for expert in here])
    exchange = _exchange(experts, here, config, shard)
    return MoE(choice, experts, exchange, shared, tensor, replace(source, here=here))


def _load_shared(
    weights: Weights,
    prefix: str,
    names: ExpertNames,
    hidden_size: int,
    config: MoEConfig,
    shard: TensorShard,
    *,
    bias: bool,
) -> Projection | None:
    """Load this rank's inner columns of the shared experts; None if there are none."""
    if not config.shared_size:
        return None
    name, size = f"{prefix}.{names.shared}", config.shared_size
    mlp = load_partial_mlp(
        weights,
        name,
        hidden_size,
        size,
        shard,
        bias=bias,
        fused=names.shared_gate_up,
        down=names.shared_down,
        activation="relu2" if config.activation == "relu2" else "silu",
    )
    if not config.has_shared_gate:
        return mlp
    gate = weights.take(f"{prefix}.{names.shared_gate}", 1, hidden_size, dtype=torch.float32)
    return GatedMLP(mlp, SharedGate(gate, source_of_tensor(f"{prefix}.{names.shared_gate}", 1, hidden_size)))


def _exchange(experts: Experts, here: range, config: MoEConfig, shard: TensorShard) -> ExpertExchange:
    """Return the exchange for experts without an expert-parallel group."""
    if shard.has_whole_experts:
        return PartExchange(here.start, len(here), experts.row_tile)
    if experts.is_grouped:
        return DeviceExchange(config.num_experts)
    return LocalExchange(config.num_experts, experts.row_tile)
