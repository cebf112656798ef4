"""Mixture of experts."""

import torch
from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.config import MoEConfig
from baton.engine.experts.dispatch import ExpertExchange, LocalExchange
from baton.engine.experts.group import ExpertGroup
from baton.engine.layers.device_exchange import DeviceExchange
from baton.engine.layers.expert_part import PartExchange
from baton.engine.layers.expert_reader import ExpertNames, ExpertReader
from baton.engine.layers.expert_routing import ExpertChoice
from baton.engine.layers.experts import Experts
from baton.engine.layers.mlp import MLP, load_partial_mlp
from baton.engine.layers.side_stream import begin_beside
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard


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
        shared = begin_beside(lambda: shared_mlp(x), x.device) if shared_mlp is not None and len(x) else None
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
