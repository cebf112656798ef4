"""The gated delta rule (arXiv 2412.06464): a matrix per head that forgets, and corrects its value for each key.

With decay `a` and rate `b`, a token with query `q`, key `k` and value `v` changes the state `S` [key_dim, value_dim]:
`S = a * S; S = S + k^T (b * (v - k S))`. Its output is `q S`. All tensors are float32.
"""

import torch
from torch import Tensor

CHUNK = 64  # tokens whose changes are computed at once


def step_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor, state: Tensor) -> Tensor:
    """Return the outputs [num_seqs, num_heads, value_dim] of one token for each sequence; updates `state` in place.

    q, k: [num_seqs, num_heads, key_dim]; v: [num_seqs, num_heads, value_dim]; decay (logarithms, at most 0), rate:
    [num_seqs, num_heads]; state: [num_seqs, num_heads, key_dim, value_dim].
    """
    state.mul_(decay.exp()[..., None, None])
    change = (v - (k.unsqueeze(-2) @ state).squeeze(-2)) * rate.unsqueeze(-1)
    state.add_(k.unsqueeze(-1) * change.unsqueeze(-2))
    return (q.unsqueeze(-2) @ state).squeeze(-2)


def chunk_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor, state: Tensor) -> Tensor:
    """Return the outputs [num_heads, num_tokens, value_dim] of consecutive tokens; updates `state` in place.

    q, k: [num_heads, num_tokens, key_dim]; v: [num_heads, num_tokens, value_dim]; decay (logarithms, at most 0), rate:
    [num_heads, num_tokens]; state: [num_heads, key_dim, value_dim]. The changes of a chunk's tokens solve a triangular
    system (arXiv 2406.06484, section 3.2).
    """
    outputs = []
    for start in range(0, q.shape[1], CHUNK):
        part = slice(start, start + CHUNK)
        outputs.append(_one_chunk(q[:, part], k[:, part], v[:, part], decay[:, part], rate[:, part], state))
    return torch.cat(outputs, dim=1)


def _one_chunk(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, rate: Tensor, state: Tensor) -> Tensor:
    total = decay.double().cumsum(1)  # [num_heads, num_tokens]; differences of large sums would lose digits in float32
    between = (total.unsqueeze(2) - total.unsqueeze(1)).float().tril().exp().tril()  # decay from each earlier token on
    since_start = total.float().exp().unsqueeze(2)
    rated = k * rate.unsqueeze(2)
    # The change of each token lacks what the state and the changes of earlier tokens have for its key.
    lacking = v * rate.unsqueeze(2) - (rated * since_start) @ state
    changes = torch.linalg.solve_triangular((rated @ k.mT) * between, lacking, upper=False, unitriangular=True)
    outputs: Tensor = (q * since_start) @ state + ((q @ k.mT) * between) @ changes
    until_end = (total[:, -1:] - total).float().exp().unsqueeze(2)
    state.mul_(since_start[:, -1:]).baddbmm_((k * until_end).mT, changes)
    return outputs
