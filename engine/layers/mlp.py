"""Feed-forward layer, gated (SwiGLU and GEGLU, arXiv 2002.05202) or not."""

from torch import Tensor

from baton.engine.activation import MLPActivation
from baton.engine.checkpoint.weights import Weights
from baton.engine.layers.activation import activated
from baton.engine.layers.linear import Linear, Projection, gated_weights, load_fused, load_partial, load_slices, summed
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard

UNSCALED = (1.0, 1.0)


class MLP:
    """`down(activation(gate(x)) * up(x))`, gate and up as one product, or `down(activation(up(x)))`."""

    def __init__(
        self,
        gate_up: Linear,
        down: Linear,
        activation: MLPActivation = "silu",
        multipliers: tuple[float, float] = UNSCALED,
    ) -> None:
        """multipliers: of the gate in front of the activation, and of the output."""
        self.gate_up = gate_up
        self.down = down
        self.activation: MLPActivation = activation
        self.multipliers = multipliers
        is_plain = activation == "silu" and multipliers == UNSCALED
        self._gated = gated_weights([(gate_up, down)]) if is_plain else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the output for x [num_tokens, hidden], in the same shape.

        With adapters enabled, always as two products: a row then has the same bits whatever adapters others have.
        """
        if self._gated is not None and self.gate_up.addend is self.down.addend is None:
            return self._gated(x, [len(x)])
        product, (gate_multiplier, multiplier) = self.gate_up(x), self.multipliers
        if gate_multiplier != 1:
            product[:, : product.shape[1] // 2].mul_(gate_multiplier)
        output = self.down(activated(product, self.activation))
        return output if multiplier == 1 else output * multiplier


def load_mlp(
    weights: Weights,
    prefix: str,
    hidden_size: int,
    size: int,
    tensor: TensorRanks,
    *,
    bias: bool = False,
    fused: str | None = None,
    down: str = "down_proj",
    activation: MLPActivation = "silu",
    multipliers: tuple[float, float] = UNSCALED,
) -> Projection:
    """Load the MLP `prefix`.gate_proj, .up_proj and .down_proj; its inner columns are divided among ranks.

    fused: name of one tensor with the rows of gate and up, in this order; None: there are two tensors; down: name of
    the last tensor; multipliers: see `MLP`.
    """
    part = load_partial_mlp(
        weights,
        prefix,
        hidden_size,
        size,
        tensor.shard,
        bias=bias,
        fused=fused,
        down=down,
        activation=activation,
        multipliers=multipliers,
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
    down: str = "down_proj",
    activation: MLPActivation = "silu",
    multipliers: tuple[float, float] = UNSCALED,
) -> MLP:
    """Load this rank's inner columns of an MLP: the ranks' results add up to the whole. See `load_mlp`."""
    ours = shard.of(size)
    if fused is None:
        parts = ("up_proj",) if activation == "relu2" else ("gate_proj", "up_proj")
        names, count = [f"{prefix}.{part}" for part in parts], len(parts)
        gate_up = load_fused(weights, names, hidden_size, [size] * count, bias=bias, rows=[ours] * count)
    else:
        rows = [ours, slice(size + ours.start, size + ours.stop)]
        gate_up = load_slices(weights, f"{prefix}.{fused}", hidden_size, 2 * size, rows, bias=bias)
    output = load_partial(weights, f"{prefix}.{down}", size, hidden_size, ours, shard, bias=bias)
    return MLP(gate_up, output, activation, multipliers)
