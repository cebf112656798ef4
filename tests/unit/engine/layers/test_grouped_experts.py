"""All experts of a rank as one grouped product: the same results as separately."""

from dataclasses import replace

import pytest
import torch

from baton.engine.experts.dispatch import LocalExchange
from baton.engine.layers.experts import ROW_TILE, Expert, Experts
from baton.engine.layers.linear import Linear
from baton.engine.layers.moe import DeviceExchange

HIDDEN, SIZE, NUM_EXPERTS = 48, 96, 5


def make_experts(seed: int) -> list[Expert]:
    draw = torch.Generator().manual_seed(seed)

    def linear(outputs: int, inputs: int) -> Linear:
        weight = torch.randn(outputs, inputs, generator=draw) / inputs**0.5
        return Linear(weight.to(torch.bfloat16), packed=False)

    return [Expert(linear(2 * SIZE, HIDDEN), linear(HIDDEN, SIZE)) for _ in range(NUM_EXPERTS)]


@pytest.mark.parametrize("tiles", [[1, 1, 1, 1, 1], [0, 3, 0, 1, 0], [0, 0, 0, 0, 7], [0, 0, 0, 0, 0]])
def test_the_grouped_product_agrees_with_separate_products(tiles: list[int]) -> None:
    slots = make_experts(1)
    sizes = [ROW_TILE * count for count in tiles]
    rows = torch.randn(sum(sizes), HIDDEN, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    expected = Experts(slots, is_grouped=False)(rows, sizes)
    torch.testing.assert_close(Experts(slots, is_grouped=True)(rows, sizes), expected, atol=1e-2, rtol=1e-2)


def test_grouped_products_have_the_biases_and_the_activation_of_separate_ones() -> None:
    draw, sizes = torch.Generator().manual_seed(5), [16, 0, 32, 16, 0]
    slots = make_experts(1)
    for place, each in enumerate(slots):
        for linear in (each.gate_up, each.down):
            linear.bias = torch.randn(len(linear.weight), generator=draw).to(torch.bfloat16)
        slots[place] = replace(each, activation="clamped_swiglu")
    rows = torch.randn(sum(sizes), HIDDEN, generator=draw).to(torch.bfloat16)
    separate, grouped = (Experts(slots, is_grouped=is_grouped) for is_grouped in (False, True))
    expected = separate(rows, sizes)
    torch.testing.assert_close(grouped(rows, sizes), expected, atol=5e-2, rtol=2e-2)
    split = Experts(grouped.slots, is_grouped=False)
    torch.testing.assert_close(split(rows, sizes), expected, atol=1e-2, rtol=1e-2)
    assert not torch.allclose(Experts(make_experts(1), is_grouped=True)(rows, sizes), expected, atol=0.1)


def test_replaced_experts_are_used_from_then_on() -> None:
    experts = Experts([], is_grouped=True)
    first, second = make_experts(1), make_experts(3)
    rows = torch.ones(ROW_TILE, HIDDEN, dtype=torch.bfloat16)
    results = []
    for slots in (first, [second[0], first[1]]):
        experts.take(experts.prepare(slots))
        assert all(torch.equal(a.down.weight, b.down.weight) for a, b in zip(experts.slots, slots, strict=True))
        results.append(experts(rows, [ROW_TILE, *[0] * (len(slots) - 1)]))
    assert not torch.equal(*results)
    experts.take(experts.prepare(first))  # new experts may be views of the earlier layout
    assert torch.equal(experts(rows, [ROW_TILE, 0, 0, 0, 0]), results[0])


def test_experts_already_in_place_are_not_copied() -> None:
    experts = Experts(make_experts(1), is_grouped=True)
    weights = experts.slots[0].down.weight
    experts.take(experts.prepare(experts.slots))
    assert experts.slots[0].down.weight.data_ptr() == weights.data_ptr()


def test_experts_are_separate_products_on_a_cpu() -> None:
    experts = make_experts(1)
    assert list(Experts(experts).slots) == experts


@pytest.mark.parametrize("num_tokens", [1, 7, 40])
def test_the_device_exchange_agrees_with_the_local_exchange(num_tokens: int) -> None:
    draw = torch.Generator().manual_seed(num_tokens)
    x = torch.randn(num_tokens, HIDDEN, generator=draw).to(torch.bfloat16)
    chosen = torch.stack([torch.randperm(NUM_EXPERTS, generator=draw)[:2] for _ in range(num_tokens)])
    weights = torch.rand(num_tokens, 2, generator=draw)
    results = []
    for is_grouped, exchange in ((False, LocalExchange(NUM_EXPERTS)), (True, DeviceExchange(NUM_EXPERTS))):
        dispatch = exchange.dispatch(x, chosen)
        arrived = dispatch.receive()
        outputs = Experts(make_experts(1), is_grouped=is_grouped)(arrived.rows, arrived.sizes)
        results.append(dispatch.combine(outputs.float(), weights))
    torch.testing.assert_close(results[1], results[0], atol=1e-2, rtol=1e-2)
