"""Choice of experts by a softmax of the router's logits, by one kernel, or by torch's operations."""

from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.execution.kernel_trial import tried

MOST_EXPERTS = 512  # 16 for each thread of a warp
MOST_TOKENS = 32  # their logits are computed here; a product's kernel is faster for more tokens
TRIAL_TOLERANCE = 1e-5


class Logits(Protocol):
    """Product of tokens in bfloat16 with the router's weights in fp32."""

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x @ weight.T in fp32 for x [num_tokens, hidden] and weight [num_experts, hidden]."""
        ...


class Choose(Protocol):
    """Function that does what `choose_in_torch` does."""

    def __call__(self, logits: Tensor, num_chosen: int, factor: float, is_normed: bool) -> tuple[Tensor, Tensor]:
        """Return weights (fp32) and experts (int64), [num_tokens, num_chosen] each."""
        ...


@dataclass(frozen=True, slots=True)
class ChoiceKernels:
    """Kernels of a router, each one launch."""

    logits: Logits
    choose: Choose


def choose_in_torch(logits: Tensor, num_chosen: int, factor: float, is_normed: bool) -> tuple[Tensor, Tensor]:
    """Return weights (fp32) and experts, [num_tokens, num_chosen] each, the best expert first; about eight launches.

    logits: [num_tokens, num_experts] fp32; factor: on the weights; is_normed: whether a token's weights add up to it.
    """
    scores = logits.softmax(dim=-1)
    weights, experts = scores.topk(num_chosen, dim=-1)
    if is_normed:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
    return weights * factor, experts


@cache
def choice_for(device: torch.device) -> ChoiceKernels | None:
    """Return the kernels for a GPU if their results are right in a trial; otherwise log why and return None.

    The trial waits for the GPU, so the first call must not be recorded in a CUDA graph.
    """
    if device.type != "cuda":
        return None
    otherwise = "experts are chosen by torch's operations: their kernels do not work"
    return tried(load_kernels, lambda kernels: check_kernels(kernels, device), otherwise)


def load_kernels() -> ChoiceKernels:
    """Import the Triton kernels. Raises ImportError if Triton is not installed."""
    from baton.engine.layers.expert_pairs.choice_triton import choose, logits

    return ChoiceKernels(logits, choose)


def check_kernels(kernels: ChoiceKernels, device: torch.device) -> None:
    """Choose experts of five tokens and compare with torch. Raises ArithmeticError if the results differ."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 328, generator=generator).to(device, torch.bfloat16)
    weight = torch.randn(12, 328, generator=generator).div_(16).to(device)
    logits, expected = kernels.logits(x, weight), x.double() @ weight.double().T
    weights, experts = kernels.choose(logits, 3, 2.0, True)
    expected_weights, expected_experts = choose_in_torch(logits, 3, 2.0, True)
    if not (
        torch.allclose(logits.double(), expected, rtol=0, atol=TRIAL_TOLERANCE)
        and torch.equal(experts, expected_experts)
        and torch.allclose(weights, expected_weights, rtol=0, atol=TRIAL_TOLERANCE)
    ):
        raise ArithmeticError("their results are wrong")
