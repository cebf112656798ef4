"""Products of slots of experts, as GPUs compute them."""

import torch

from baton.engine.lora.stacked_experts import ExpertSlots


def test_grouped_and_separate_products_of_slots() -> None:
    draw = torch.Generator().manual_seed(1)
    sizes, width = [5, 0, 3, 8], 8
    a, b = (torch.randn(4, *size, generator=draw).bfloat16() for size in ((2 * width, 32), (24, 2 * width)))
    slots = torch.tensor([0, 1, 2, 0, 1, 1, 1, 2, 0, 0, 0, 2, 2, 1, 1, 0])  # the third one: no adapter
    x, made = torch.randn(16, 32, generator=draw).bfloat16(), ExpertSlots(a, b, width)
    outputs = [torch.zeros(16, 24, dtype=torch.bfloat16) for _ in range(2)]
    made.add(x, outputs[0], sizes, slots)
    made.add(x, outputs[1], torch.tensor(sizes).cumsum(0).int(), slots)
    torch.testing.assert_close(*outputs, atol=0.5, rtol=0.05)
    expert = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    for row, (slot, place) in enumerate(zip(slots.tolist(), expert.tolist(), strict=True)):
        ranks = slice(slot * width, (slot + 1) * width)
        wanted = b[place][:, ranks].float() @ (a[place][ranks].float() @ x[row].float())
        torch.testing.assert_close(outputs[0][row].float(), wanted, atol=0.5, rtol=0.05)
