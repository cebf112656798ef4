"""Expert computation for training on a CPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME = "row_tiles"
# oneDNN compiles a kernel for each new shape, so rows are padded to whole tiles to limit the number of shapes.
TILE_ROWS = 128


def register_experts() -> str:
    """Register the computation with transformers, and return its name."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    return NAME


def experts_forward(experts: nn.Module, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return each token's weighted expert sum: hidden [num_tokens, hidden], chosen and weights [num_tokens, top_k]."""
    num_tokens, top_k = chosen.shape
    order = torch.argsort(chosen.reshape(-1), stable=True)
    counts = torch.bincount(chosen.reshape(-1), minlength=experts.num_experts).tolist()
    flat_weights = weights.reshape(-1)
    padded = torch.cat([hidden, hidden.new_zeros(1, hidden.shape[1])])  # the last row is padding
    rows, outputs = [], []
    matrices = zip(order.split(counts), experts.gate_up_proj.unbind(), experts.down_proj.unbind(), strict=True)
    for picks, gate_up, down in matrices:
        missing = -len(picks) % TILE_ROWS
        tokens = functional.pad(picks // top_k, (0, missing), value=num_tokens)
        gate, up = functional.linear(padded[tokens], gate_up).chunk(2, dim=-1)
        output = (
            functional.linear(functional.silu(gate) * up, down)
            * functional.pad(flat_weights[picks], (0, missing))[:, None]
        )
        rows.append(tokens)
        outputs.append(output)
    return torch.zeros_like(padded).index_add(0, torch.cat(rows), torch.cat(outputs))[:num_tokens]
