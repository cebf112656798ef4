"""RMS norm layer, and its place where a layer has none."""

from typing import Protocol

from torch import Tensor

from baton.engine.ops.factory import ops_for


class Norm(Protocol):
    """Norm of hidden states, or nothing in its place."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., size], in the same shape."""
        ...

    def add(self, x: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the sum of two tensors [num_tokens, size] and its norm. Both inputs may be overwritten."""
        ...


class NoNorm:
    """Place without a norm."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def add(self, x: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the sum of two tensors [num_tokens, size], twice."""
        total = x if addend is None else x + addend
        return total, total


NO_NORM = NoNorm()


class RMSNorm:
    """Root mean square norm (arXiv 1910.07467) over the last dimension, computed in fp32."""

    def __init__(self, weight: Tensor, eps: float, offset: float = 0.0) -> None:
        """weight: [size]; offset: added to the weight."""
        self.weight = weight
        self.eps = eps
        self.offset = offset
        self._ops = ops_for(weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of x [..., size], in the same shape."""
        return self._ops.rms_norm(x, self.weight, self.eps, self.offset)

    def add(self, x: Tensor, addend: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the sum of two tensors [num_tokens, size] and its norm. Both inputs may be overwritten."""
        if addend is None:
            return x, self(x)
        return self._ops.add_rms_norm(x, addend, self.weight, self.eps, self.offset)
