"""Random tokens, experts and routing for the kernels of few tokens, and the checks of Triton's kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.layers.expert_pairs.choice import ChoiceKernels, choose_in_torch
from baton.engine.layers.expert_pairs.products import PairProducts, products_in_torch

# Tokens, chosen experts, hidden and inner size: below, at and above the columns that a program reads at once.
SHAPES = ((4, 2, 16, 16), (1, 2, 8, 264), (3, 3, 264, 8), (9, 1, 512, 8), (1, 1, 8, 520))


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments of a product of few tokens."""

    x: Tensor
    chosen: Tensor
    weights: Tensor
    gate_up: Tensor
    down: Tensor

    def computed(self, products: PairProducts) -> Tensor:
        """Return the results."""
        return products(self.x, self.chosen, self.weights, self.gate_up, self.down)


def random_case(seed: int) -> Case:
    """Return a case in rows with a gap; its last two tokens choose the same experts."""
    generator, num_experts = torch.Generator().manual_seed(seed), 5
    num_tokens, num_chosen, hidden, inner = SHAPES[seed]

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).div_(shape[-1] ** 0.5).bfloat16()

    chosen = torch.stack([torch.randperm(num_experts, generator=generator)[:num_chosen] for _ in range(num_tokens)])
    chosen[-1] = chosen[max(0, num_tokens - 2)]
    return Case(
        x=(drawn(num_tokens, hidden + 8) * 16)[:, :hidden],
        chosen=chosen,
        weights=torch.rand(num_tokens, num_chosen, generator=generator),
        gate_up=drawn(num_experts, 2 * inner, hidden),
        down=drawn(num_experts, hidden, inner),
    )


def check_products(products: PairProducts) -> None:
    """Compare with torch, and check that a token's result does not depend on the others.

    Triton's interpreter truncates to bfloat16 where a GPU rounds, so results differ by up to a unit each time.
    """
    for seed in range(len(SHAPES)):
        case = random_case(seed)
        found, expected = case.computed(products).float(), case.computed(products_in_torch).float()
        unit = torch.finfo(torch.bfloat16).eps * expected.abs().max()
        assert bool(((found - expected).abs() <= 4 * unit).all()), f"case {seed}: {(found - expected).abs().max()}"
        last = Case(case.x[-1:], case.chosen[-1:], case.weights[-1:], case.gate_up, case.down)
        assert torch.equal(last.computed(products).float(), found[-1:]), f"the last token of case {seed}"


def check_choice(kernels: ChoiceKernels) -> None:
    """Compare logits, weights and experts with torch, with ties, infinities and NaN among the logits."""
    generator = torch.Generator().manual_seed(0)
    for num_tokens, num_experts, num_chosen, hidden in (
        (1, 128, 8, 64),
        (5, 8, 2, 128),
        (9, 60, 4, 328),
        (3, 5, 5, 2048),
    ):
        x = torch.randn(num_tokens, hidden + 1, generator=generator).bfloat16()[:, :hidden]
        weight = torch.randn(num_experts, hidden, generator=generator) / hidden**0.5
        logits = kernels.logits(x, weight)
        torch.testing.assert_close(logits, x.float() @ weight.T, atol=1e-5, rtol=0)
        for factor, is_normed in ((1.0, True), (2.5, False)):
            weights, experts = kernels.choose(logits, num_chosen, factor, is_normed)
            expected_weights, expected_experts = choose_in_torch(logits, num_chosen, factor, is_normed)
            assert torch.equal(experts, expected_experts)
            torch.testing.assert_close(weights, expected_weights, atol=1e-6, rtol=1e-5)
    special = torch.tensor([[0.0] * 6, [1, 3, 3, -1, 3, 2], [-torch.inf, 0, -torch.inf, 1, -torch.inf, -torch.inf]])
    weights, experts = kernels.choose(special, 4, 1.0, True)
    assert experts.tolist() == [[0, 1, 2, 3], [1, 2, 4, 5], [3, 1, 0, 2]]
    expected, _ = choose_in_torch(special, 4, 1.0, True)
    torch.testing.assert_close(weights, expected, atol=1e-6, rtol=0)
    special[0] = torch.nan
    special[1, 2] = torch.nan
    weights, experts = kernels.choose(special, 4, 1.0, True)
    assert experts.tolist()[:2] == [[0, 1, 2, 3], [1, 4, 5, 0]]
    assert bool(weights[:2].isnan().all())
    assert bool(weights[2].isfinite().all())
