"""Weighted sum of a token's experts, by kernels that read the experts of each token separately.

For few tokens, sorting rows by expert and grouped products take longer than reading the experts.
"""

from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.execution.kernel_trial import tried

MOST_TOKENS = 32
MOST_CHOSEN = 16
MOST_READS = 2.0  # of an expert on average; repeated ones come from the L2 cache, with about twice memory's bandwidth
VECTOR = 8  # elements in 16 bytes
TRIAL_TOLERANCE = 2**-5  # of results below 2: two to four units in the last place of bfloat16


class PairProducts(Protocol):
    """Function that does what `products_in_torch` does."""

    def __call__(self, x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """Return the weighted sums of the experts' outputs, [num_tokens, hidden]."""
        ...


def products_in_torch(x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Return the weighted sums of the experts' outputs, [num_tokens, hidden] in the type of x; for comparison.

    x: [num_tokens, hidden]; chosen: [num_tokens, num_chosen] int64; weights: the same in fp32; gate_up: [num_experts,
    2 * inner, hidden], the gate first, with SiLU; down: [num_experts, hidden, inner]. Products and sums are in fp32.
    Gates and ups, activations, outputs and weighted outputs are rounded to the type of x, as grouped products do.
    """
    dtype = x.dtype
    both = torch.einsum("toh,th->to", gate_up[chosen].flatten(1, 2).float(), x.float()).to(dtype).float()
    gate, up = both.view(*chosen.shape, -1).chunk(2, dim=2)
    activated = (torch.nn.functional.silu(gate) * up).to(dtype).float()
    outputs = torch.einsum("tchi,tci->tch", down[chosen].float(), activated).to(dtype).float()
    return (outputs * weights.unsqueeze(2)).to(dtype).float().sum(1).to(dtype)


def are_few(num_tokens: int, num_chosen: int, num_experts: int) -> bool:
    """Return whether reading the experts of each token costs no more than reading each expert once.

    If tokens choose evenly and independently, E * (1 - (1 - k / E) ** n) of E experts are chosen by any of n tokens.
    """
    distinct = num_experts * (1 - (1 - num_chosen / num_experts) ** num_tokens)
    return 0 < num_tokens <= MOST_TOKENS and num_tokens * num_chosen <= MOST_READS * distinct


def is_served(x: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> bool:
    """Return whether the kernels serve tensors of these shapes; see `products_in_torch`."""
    num_experts, hidden, inner = down.shape
    return (
        x.dtype == gate_up.dtype == down.dtype == torch.bfloat16
        and x.stride(1) == 1
        and chosen.is_contiguous()
        and gate_up.is_contiguous()
        and down.is_contiguous()
        and hidden % VECTOR == inner % VECTOR == 0
        and chosen.shape[1] <= MOST_CHOSEN
        and are_few(len(x), chosen.shape[1], num_experts)
    )


@cache
def products_for(device: torch.device) -> PairProducts | None:
    """Return the kernels for a GPU if their results are right in a trial; otherwise log why and return None.

    The trial waits for the GPU, so the first call must not be recorded in a CUDA graph.
    """
    if device.type != "cuda":
        return None
    otherwise = "experts of few tokens are computed as those of many: their kernels do not work"
    return tried(load_kernels, lambda kernels: check_kernels(kernels, device), otherwise)


def load_kernels() -> PairProducts:
    """Import the Triton kernels. Raises ImportError if Triton is not installed."""
    from baton.engine.layers.expert_pairs.products_triton import products

    return products


def check_kernels(kernels: PairProducts, device: torch.device) -> None:
    """Compute three tokens and compare with torch. Raises ArithmeticError if the results differ."""
    generator = torch.Generator().manual_seed(0)
    num_experts, num_chosen, hidden, inner = 5, 3, 320, 264

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).div_(shape[-1] ** 0.5).to(device, torch.bfloat16)

    x, gate_up, down = drawn(3, hidden) * 16, drawn(num_experts, 2 * inner, hidden), drawn(num_experts, hidden, inner)
    chosen = torch.tensor([[4, 0, 2], [1, 4, 3], [0, 1, 2]], device=device)
    weights = torch.rand(3, num_chosen, generator=generator).to(device)
    ours, theirs = (each(x, chosen, weights, gate_up, down).float() for each in (kernels, products_in_torch))
    if not torch.allclose(ours, theirs, rtol=0, atol=TRIAL_TOLERANCE):
        raise ArithmeticError("their results are wrong")
