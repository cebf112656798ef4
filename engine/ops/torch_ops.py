"""Row operations in plain torch: the reference for the other implementations."""

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.activation import Activation
from baton.engine.ops.base import HeadNorms, Rotation

SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0  # GPT-OSS
LEAST_SCALED = 1e-35  # rows with a smaller maximum are quantised to zero
UNDIVIDED_ELEMENTS = 1 << 15  # torch's grain size: fewer elements stay on one thread
EVEN_THREADS = 2  # with up to this many threads, torch's shares of whole rows fill whole vectors


class TorchOps:
    """Row operations in plain torch."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
        """Return the RMS norm of x over its last dimension."""
        if not offset:
            return F.rms_norm(x, weight.shape, weight, eps)
        return F.rms_norm(x.float(), weight.shape, weight.float() + offset, eps).to(x.dtype)

    def add_rms_norm(
        self, x: Tensor, addend: Tensor, weight: Tensor, eps: float, offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return x + addend and its RMS norm."""
        total = x + addend
        return total, self.rms_norm(total, weight, eps, offset)

    def gate_and_mul(self, gate_up: Tensor, activation: Activation = "silu") -> Tensor:
        """Return activation(gate) * up of gate_up [num_tokens, 2 * size].

        torch divides elements among threads regardless of rows, and computes the tail of a thread's share, which does
        not fill a vector, differently. Therefore each call here gets few enough rows for a single thread.
        """
        rows = max(1, UNDIVIDED_ELEMENTS // gate_up.shape[1])
        if len(gate_up) <= rows or gate_up.is_cuda or torch.get_num_threads() <= EVEN_THREADS:
            return _gate_and_mul(gate_up, activation)
        return torch.cat([_gate_and_mul(part, activation) for part in torch.split(gate_up, rows)])

    def quantise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantise each row of x to uint8 with its own scale."""
        x = x.float()
        most = x.abs().amax(1, keepdim=True)
        is_scaled = most >= LEAST_SCALED
        factor = torch.where(is_scaled, torch.full_like(most, 127) / most, 0.0)
        scales = torch.where(is_scaled, most / 127, most * 0.0)
        return ((x * factor).round() + 128).to(torch.uint8), scales[:, 0]

    def scale(self, x: Tensor, scales: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply each row by its scale and add the bias."""
        scaled = x.float() * scales[:, None]
        return (scaled if bias is None else scaled + bias.float()).to(x.dtype)

    def weighted_sum(self, rows: Tensor, places: Tensor | None, weights: Tensor) -> Tensor:
        """Sum each token's rows, weighted, in routing order; in the rows' dtype."""
        chosen = rows if places is None else rows[places]
        return chosen.view(*weights.shape, rows.shape[1]).mul_(weights.unsqueeze(2)).sum(dim=1)

    def rotate(self, heads: Tensor, rotation: Rotation, norms: HeadNorms | None = None) -> Tensor:
        """Rotate heads by their tokens' positions, after optional norms."""
        if norms is not None and norms.offset:
            normed = F.rms_norm(heads.float(), heads.shape[-1:], None, norms.eps)
            heads = (normed * (norms.weight.float() + norms.offset)).to(heads.dtype)
        elif norms is not None:
            heads = F.rms_norm(heads, heads.shape[-1:], None, norms.eps) * norms.weight
        width = rotation.table.shape[1]
        if width == heads.shape[-1]:
            return _rotated(heads, rotation)
        return torch.cat([_rotated(heads[..., :width], rotation), heads[..., width:]], dim=-1)


def _rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation.cos_sin(heads.dtype)
    first, second = (heads[..., 0::2], heads[..., 1::2]) if rotation.interleaved else heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _gate_and_mul(gate_up: Tensor, activation: Activation) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    if activation == "silu":
        return F.silu(gate).mul_(up)
    if activation == "gelu_tanh":
        return F.gelu(gate, approximate="tanh").mul_(up)
    gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    return torch.sigmoid(gate * SWIGLU_ALPHA).mul_(gate).mul_(up + 1)
