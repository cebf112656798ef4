"""Matrix products with weights, in the form that is fastest where they run."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from engine.weights import Weights, stack


class Linear:
    """`x @ weight.T + bias`. On a CPU the weight is laid out for oneDNN once, and the plain copy is given up."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, packed: bool = True) -> None:
        """weight: [out_features, in_features]; bias: [out_features]. `packed` false keeps the plain layout on a CPU."""
        self.bias = bias
        self.is_packed = packed and _can_pack(weight)
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight) if self.is_packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, in_features]. Returns [num_tokens, out_features]."""
        if self.is_packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return result
        return F.linear(x, self.weight, self.bias)


def load_linear(weights: Weights, prefix: str, in_features: int, out_features: int, *, bias: bool = False) -> Linear:
    """One projection, `prefix`.weight and, if it has one, `prefix`.bias."""
    return load_fused(weights, [prefix], in_features, [out_features], bias=bias)


def load_fused(
    weights: Weights, prefixes: Sequence[str], in_features: int, out_features: Sequence[int], *, bias: bool = False
) -> Linear:
    """Projections of one input as one product; their outputs lie side by side in the order given."""
    weight = stack(weights, [f"{prefix}.weight" for prefix in prefixes], out_features, in_features)
    return Linear(weight, stack(weights, [f"{prefix}.bias" for prefix in prefixes], out_features) if bias else None)


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
