"""Gated feed-forward layer (SwiGLU and GEGLU, arXiv 2002.05202)."""

from torch import Tensor

from baton.engine.checkpoint.weights import Weights
from baton.engine.config import Activation
from baton.engine.layers.linear import Linear, Projection, gated_weights, load_fused, load_partial, load_slices, summed
from baton.engine.ops.factory import ops_for
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard


class MLP:
    """`down(activation(gate(x)) * up(x))`, gate and up as one product."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation = "silu") -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation: Activation = activation
        self._gated = gated_weights([(gate_up, down)]) if activation == "silu" else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape.

        With adapters enabled, always as two products: a row then has the same bits whatever adapters others have.
        """
        if self._gated is not None and self.gate_up.addend is self.down.addend is None:
            return self._gated(x, [len(x)])
        return self.down(ops_for(x.device).gate_and_mul(self.gate_up(x), self.activation))


def load_mlp(
    weights: Weights,
    prefix: str,
    hidden_size: int,
    size: int,
    tensor: TensorRanks,
    *,
    bias: bool = False,
    fused: str | None = None,
    activation: Activation = "silu",
) -> Projection:
    """Load the MLP `prefix`.gate_proj, .up_proj and .down_proj; its inner columns are divided among ranks.

    fused: name of one tensor with the rows of gate and up, in this order; None: there are two tensors.
    """
    part = load_partial_mlp(
        weights, prefix, hidden_size, size, tensor.shard, bias=bias, fused=fused, activation=activation
    )
    return summed(part, tensor)


def load_partial_mlp(
    weights: Weights,
    prefix: str,
    hidden_size: int,
    size: int,
    shard: TensorShard,
    *,
    bias: bool = False,
    fused: str | None = None,
    activation: Activation = "silu",
) -> MLP:
    """Load this rank's inner columns of an MLP: the ranks' results add up to the whole. See `load_mlp`."""
    ours = shard.of(size)
    if fused is None:
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        gate_up = load_fused(weights, names, hidden_size, [size, size], bias=bias, rows=[ours, ours])
    else:
        rows = [ours, slice(size + ours.start, size + ours.stop)]
        gate_up = load_slices(weights, f"{prefix}.{fused}", hidden_size, 2 * size, rows, bias=bias)
    down = load_partial(weights, f"{prefix}.down_proj", size, hidden_size, ours, shard, bias=bias)
    return MLP(gate_up, down, activation)
