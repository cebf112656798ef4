"""Products of slots of experts, as GPUs compute them."""

import pytest
import torch

from baton.engine.lora import stacked_experts
from baton.engine.lora.stacked_experts import ExpertSlots


def test_grouped_and_separate_products_of_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked_experts, "NUM_RESCALED", 5)  # so that the rows are in several parts
    draw = torch.Generator().manual_seed(1)
    sizes, width = [5, 0, 3, 8], 8
    a, b = (torch.randn(4, *size, generator=draw).bfloat16() for size in ((2 * width, 32), (24, 2 * width)))
    slots = torch.tensor([0, 1, 2, 0, 1, 1, 1, 2, 0, 0, 0, 2, 2, 1, 1, 0])  # the third one: no adapter
    gains, biases = torch.randn(4, 3, 24, generator=draw), torch.randn(4, 24, generator=draw)
    gains[:, 2] = 0
    x, made = torch.randn(16, 32, generator=draw).bfloat16(), ExpertSlots(a, b, gains, biases, width)
    base = torch.randn(16, 24, generator=draw).bfloat16()
    outputs = [base.clone(), base.clone()]
    for output, given in zip(outputs, (sizes, torch.tensor(sizes).cumsum(0).int()), strict=True):
        made.rescale(output, given, slots)
        made.add(x, output, given, slots)
    torch.testing.assert_close(*outputs, atol=0.5, rtol=0.05)
    expert = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    for row, (slot, place) in enumerate(zip(slots.tolist(), expert.tolist(), strict=True)):
        ranks = slice(slot * width, (slot + 1) * width)
        wanted = base[row].float() + b[place][:, ranks].float() @ (a[place][ranks].float() @ x[row].float())
        wanted += (base[row].float() - biases[place]) * gains[place, slot]
        torch.testing.assert_close(outputs[0][row].float(), wanted, atol=0.5, rtol=0.05)
