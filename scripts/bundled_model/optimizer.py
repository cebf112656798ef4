"""Muon for matrices, AdamW for the rest. On such a small text it needs about 0.6 times AdamW's steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of Jordan et al., for five rounds


@dataclass(slots=True)
class Muon:
    """Momentum with orthogonalised updates (Jordan et al., "Muon", 2024); leading dimensions are batches."""

    parameters: Sequence[Tensor]
    momentum: float = 0.95
    weight_decay: float = 0.1
    velocities: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.velocities = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update all matrices in place from their gradients."""
        for parameter, velocity in zip(self.parameters, self.velocities, strict=True):
            assert parameter.grad is not None
            velocity.lerp_(parameter.grad, 1 - self.momentum)
            direction = orthogonalize(parameter.grad.lerp(velocity, self.momentum))
            # Scaled to AdamW's update size (Liu et al., "Muon is scalable for LLM training", 2025, section 2.2).
            scale = 0.2 * max(parameter.shape[-2:]) ** 0.5
            parameter.mul_(1 - learning_rate * self.weight_decay).add_(direction, alpha=-learning_rate * scale)


@dataclass(slots=True)
class Optimizer:
    """float32 master copies of a model's bfloat16 parameters, and their optimizers."""

    model: nn.Module
    clip_norm: float
    masters: list[Tensor] = field(init=False)
    muon: Muon = field(init=False)
    adamw: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.model.named_parameters()]
        self.masters = [parameter.detach().float() for parameter in self.model.parameters()]
        # Embeddings and router rows are used one by one, not as a matrix product.
        is_matrix = [
            master.ndim > 1 and not name.endswith(("embed_tokens.weight", "mlp.gate.weight"))
            for name, master in zip(names, self.masters, strict=True)
        ]
        pairs = list(zip(self.masters, is_matrix, strict=True))
        self.muon = Muon([master for master, matrix in pairs if matrix])
        rest = [master for master, matrix in pairs if not matrix]
        self.adamw = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, learning_rate: float) -> None:
        """Update the model's parameters from its gradients."""
        parameters = list(self.model.parameters())
        for parameter, master in zip(parameters, self.masters, strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
            parameter.grad = None
        nn.utils.clip_grad_norm_(self.masters, self.clip_norm)
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.step()
        self.muon.step(learning_rate)
        with torch.no_grad():
            for parameter, master in zip(parameters, self.masters, strict=True):
                parameter.copy_(master)


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return approximately the nearest orthogonal matrices, [..., rows, columns] float32, computed in bfloat16."""
    a, b, c = NEWTON_SCHULZ
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    found = matrices.mT.bfloat16() if is_tall else matrices.bfloat16()
    found = found / (found.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    return (found.mT if is_tall else found).float()
