"""Expert routing, independent of the other tokens in the batch."""

import math
import random

import pytest
import torch

from baton.engine.layers.expert_routing import ExpertChoice, choose_experts
from baton.engine.moe import MoEConfig

needs_compiled = pytest.mark.skipif(choose_experts is None, reason="nothing was compiled when this was installed")


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("hidden", "num_experts"), [(64, 8), (1024, 64), (2048, 128)])
def test_bits_depend_on_the_row_alone(threads: int, hidden: int, num_experts: int) -> None:
    draw = torch.Generator().manual_seed(0)
    config = MoEConfig(num_experts=num_experts, num_experts_per_token=4, intermediate_size=64, norm_topk_prob=True)
    choice = ExpertChoice(config, torch.randn(num_experts, hidden, generator=draw) / hidden**0.5, None)
    x = torch.randn(200, hidden, generator=draw).bfloat16()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weights, experts = choice(x)
        assert weights.shape == experts.shape == (200, 4)
        for first, count in ((0, 1), (3, 1), (5, 3), (40, 8), (100, 17), (0, 199)):
            rows = slice(first, first + count)
            alone = choice(x[rows])
            assert torch.equal(alone[0], weights[rows])
            assert torch.equal(alone[1], experts[rows])
    finally:
        torch.set_num_threads(before)


def random_routing(draw: random.Random) -> ExpertChoice:
    """A random routing config of a kind that models use."""
    num_groups, group_size = draw.choice([1, 1, 2, 8]), draw.choice([2, 3, 8, 33])
    num_best = draw.randint(1, num_groups)
    config = MoEConfig(
        num_experts=num_groups * group_size,
        num_experts_per_token=draw.randint(1, num_best * group_size),
        intermediate_size=64,
        norm_topk_prob=draw.random() < 0.5,
        scoring=draw.choice(["softmax", "sigmoid"]),
        num_groups=num_groups,
        topk_groups=num_best,
        group_score_top=draw.choice([1, 2]),
        routed_scaling_factor=draw.choice([1.0, 2.5]),
    )
    generator = torch.Generator().manual_seed(draw.randrange(1000))
    bias = torch.randn(config.num_experts, generator=generator) / 4 if draw.random() < 0.5 else None
    return ExpertChoice(config, torch.randn(config.num_experts, 24, generator=generator), bias)


@needs_compiled
@pytest.mark.parametrize("seed", range(40))
def test_compiled_routing_agrees_with_torch(seed: int) -> None:
    draw = random.Random(seed)
    choice = random_routing(draw)
    shape = draw.choice([0, 1, 15, 100]), choice.config.num_experts
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * draw.choice([1, 3])
    assert choice._rule is not None
    weights, experts = choice._chosen_natively(logits, choice._rule)
    expected_weights, expected = choice._chosen(logits)
    # Scores that differ by less than a rounding may swap places.
    torch.testing.assert_close(weights.sum(1), expected_weights.sum(1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weights.sort(1).values, expected_weights.sort(1).values, atol=1e-5, rtol=1e-5)
    assert (experts == expected).float().mean() > 0.99 or not len(logits)
    assert all(len(set(row)) == len(row) for row in experts.tolist())


@needs_compiled
def test_ties_select_the_first_experts() -> None:
    config = MoEConfig(num_experts=12, num_experts_per_token=4, intermediate_size=64, num_groups=3, topk_groups=2)
    choice = ExpertChoice(config, torch.zeros(12, 8), None)
    assert choice._rule is not None
    weights, experts = choice._chosen_natively(torch.zeros(3, 12), choice._rule)
    assert experts.tolist() == [[0, 1, 2, 3]] * 3
    torch.testing.assert_close(weights.sum(1), torch.full((3,), 4 / 12 if not config.norm_topk_prob else 1.0))


@needs_compiled
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("seed", range(6))
def test_a_token_never_selects_an_expert_twice(number: float, seed: int) -> None:
    """Not even with logits that are not finite."""
    choice = random_routing(random.Random(seed))
    assert choice._rule is not None
    num_experts = choice.config.num_experts
    logits = torch.randn(3, num_experts, generator=torch.Generator().manual_seed(seed))
    logits[0] = number
    logits[1, :: max(2, num_experts // 2)] = number
    _, experts = choice._chosen_natively(logits, choice._rule)
    assert all(len(set(row)) == len(row) and min(row) >= 0 and max(row) < num_experts for row in experts.tolist())
