"""Distance of a result from its reference."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Closeness:
    """Three distances, because each misses something: cosine ignores scale, the overall error single elements.

    Errors are relative to the reference's root mean square.
    """

    cosine: float
    error: float  # root mean square of the difference
    max_error: float

    @classmethod
    def of(cls, result: Tensor, reference: Tensor) -> "Closeness":
        """Compare two tensors of equal shape. Non-finite values are infinitely far."""
        if result.shape != reference.shape:
            raise ValueError(f"the result has shape {list(result.shape)}, its reference {list(reference.shape)}")
        ours, theirs = result.detach().double().flatten(), reference.detach().double().flatten().to(result.device)
        if not bool(ours.isfinite().all()):
            return cls(0.0, float("inf"), float("inf"))
        size = float(theirs.square().mean().sqrt()) or 1.0
        difference = ours - theirs
        norms = float(ours.norm() * theirs.norm())
        return cls(
            cosine=float(ours @ theirs) / norms if norms else float(torch.equal(ours, theirs)),
            error=float(difference.square().mean().sqrt()) / size,
            max_error=float(difference.abs().max()) / size,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the three distances."""

    cosine: float = 0.999
    error: float = 0.005
    max_error: float = 0.1

    def admit(self, closeness: Closeness) -> bool:
        """Whether all three are within the limits."""
        return closeness.cosine > self.cosine and closeness.error < self.error and closeness.max_error < self.max_error


# `max_error` is relative to all results: those of short contexts are the largest, and so are their rounding errors.
# Rounding to bf16 has a relative error of 0.0017; an operation has up to a few roundings, and attention also rounds its
# probabilities. In fp32 only the order of sums may differ.
OPERATION = {torch.bfloat16: Limits(0.9999, 0.006, 0.25), torch.float32: Limits(0.999999, 1e-5, 1e-4)}
ATTENTION = {torch.bfloat16: Limits(0.999, 0.01, 0.25), torch.float32: Limits(0.999999, 1e-5, 1e-4)}
