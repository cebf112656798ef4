"""Experts by `nixl_ep`, as far as it goes without a GPU: what is asked of it, and what is made of what it gives.

Its kernels are stood in for by a few lines that move rows between threads, in the shapes that its documentation gives.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import EngineError, GroupBroken
from engine.expert_parallel import ExpertRoutes
from engine.layers.experts import ROW_TILE
from engine.nixl_experts import MAX_TOKENS, NixlLink, check_nixl

CPU = torch.device("cpu")
HIDDEN = 16


class Fabric:
    """What all ranks have sent, slot by slot."""

    def __init__(self, size: int, slots_per_rank: int) -> None:
        self.size = size
        self.slots_per_rank = slots_per_rank
        self.sent: dict[int, tuple[Tensor, Tensor]] = {}
        self.results: dict[int, Tensor] = {}
        self.places: dict[tuple[int, int, int], tuple[int, int]] = {}  # (rank, token, choice) to slot and row
        self.meeting = threading.Barrier(size)
        self.masked: list[int] = []


class ThreadBuffer:
    """One rank's buffer."""

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self._fabric = fabric
        self._rank = rank
        self.is_destroyed = False

    def low_latency_dispatch(
        self, x: Tensor, topk_idx: Tensor, num_max_dispatch_tokens_per_rank: int, num_experts: int, **options: bool
    ) -> tuple[Tensor, Tensor, Any, Any, Callable[[], None]]:
        fabric = self._fabric
        assert options == {"use_fp8": False, "return_recv_hook": True}
        assert (x.dtype, topk_idx.dtype) == (torch.bfloat16, torch.int64)
        assert num_experts == fabric.size * fabric.slots_per_rank
        assert len(x) <= num_max_dispatch_tokens_per_rank
        fabric.sent[self._rank] = (x, topk_idx)
        capacity = num_max_dispatch_tokens_per_rank * fabric.size
        received = torch.full((fabric.slots_per_rank, capacity, HIDDEN), torch.nan, dtype=torch.bfloat16)
        counts = torch.zeros(fabric.slots_per_rank, dtype=torch.int32)

        def receive() -> None:
            fabric.meeting.wait(10)
            for rank in reversed(range(fabric.size)):  # rows come in any order
                rows, chosen = fabric.sent[rank]
                for token, choice in (chosen // fabric.slots_per_rank == self._rank).nonzero().tolist():
                    slot = int(chosen[token, choice]) % fabric.slots_per_rank
                    received[slot, counts[slot]] = rows[token]
                    fabric.places[rank, token, choice] = (int(chosen[token, choice]), int(counts[slot]))
                    counts[slot] += 1

        return received, counts, "handle", None, receive

    def low_latency_combine(
        self, x: Tensor, topk_idx: Tensor, topk_weights: Tensor, handle: Any
    ) -> tuple[Tensor, Any, Any]:
        fabric = self._fabric
        assert (handle, topk_weights.dtype) == ("handle", torch.float32)
        fabric.results[self._rank] = x
        fabric.meeting.wait(10)
        combined = torch.zeros(len(topk_idx), HIDDEN)
        for token, choice in torch.ones_like(topk_idx).nonzero().tolist():
            place, row = fabric.places[self._rank, token, choice]
            rank, slot = divmod(place, fabric.slots_per_rank)
            combined[token] += topk_weights[token, choice] * fabric.results[rank][slot, row].float()
        fabric.meeting.wait(10)
        return combined.bfloat16(), None, None

    def query_mask_buffer(self, mask_status: Tensor) -> None:
        mask_status[self._fabric.masked] = 1

    def destroy(self) -> None:
        self.is_destroyed = True


def on_ranks(fabric: Fabric, run: Callable[[int, NixlLink], Any]) -> list[Any]:
    links = [NixlLink(ThreadBuffer(fabric, rank), fabric.size, fabric.slots_per_rank) for rank in range(fabric.size)]
    with ThreadPoolExecutor(fabric.size) as threads:
        return list(threads.map(run, range(fabric.size), links))


@pytest.mark.parametrize("num_tokens", [[3, 5], [0, 1], [MAX_TOKENS, 0]])
def test_every_token_gets_what_its_experts_give(num_tokens: list[int]) -> None:
    slots = [[0, 2, 1], [1, 3]]  # expert 1 stands on both
    routes = ExpertRoutes(4, slots, CPU)
    fabric = Fabric(2, slots_per_rank=5)  # room for more than the layer has
    came: list[int] = []

    def run(rank: int, link: NixlLink) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(rank)
        x = torch.randn(num_tokens[rank], HIDDEN, generator=draw).bfloat16()
        chosen = torch.stack([torch.randperm(4, generator=draw)[:2] for _ in x]) if len(x) else torch.zeros(0, 2).long()
        weights = torch.rand(len(x), 2, generator=draw)
        replicas = routes.of(chosen, rank)
        assert link.takes(num_tokens, routes.slots_per_rank)
        dispatch = link.dispatch(x, replicas, routes.slots_per_rank, came.append)
        arrived = dispatch.arrive()
        assert all(size % ROW_TILE == 0 for size in arrived.sizes)
        assert arrived.sizes[len(slots[rank]) :] == [0] * (5 - len(slots[rank]))
        parts = arrived.rows.split_with_sizes(arrived.sizes)
        factors = [expert + 1 for expert in slots[rank]] + [0] * (5 - len(slots[rank]))  # an expert multiplies
        outputs = torch.cat([part * factor for part, factor in zip(parts, factors, strict=True)])
        expected = (x.float().unsqueeze(1) * ((chosen + 1) * weights).unsqueeze(2)).sum(dim=1)
        return dispatch.combine(outputs, weights).float(), expected

    for combined, expected in on_ranks(fabric, run):
        torch.testing.assert_close(combined, expected, atol=0.05, rtol=0.02)
    assert sum(came) == 2 * sum(num_tokens)


def test_steps_that_are_too_large_go_another_way() -> None:
    link = NixlLink(ThreadBuffer(Fabric(2, 4), 0), 2, 4)
    assert link.takes([MAX_TOKENS, 0], 4)
    assert not link.takes([0, MAX_TOKENS + 1], 4)
    assert not link.takes([1, 1], 5)  # more slots than there is room for


def test_a_rank_that_did_not_answer_breaks_the_group() -> None:
    fabric = Fabric(1, 2)
    fabric.masked = [0]
    buffer = ThreadBuffer(fabric, 0)
    link = NixlLink(buffer, 1, 2)
    dispatch = link.dispatch(torch.ones(1, HIDDEN).bfloat16(), torch.tensor([[0, 1]]), 2, lambda _: None)
    arrived = dispatch.arrive()
    with pytest.raises(GroupBroken, match=r"ranks \[0\] did not answer within 10 s"):
        dispatch.combine(arrived.rows, torch.ones(1, 2))
    link.close()
    assert buffer.is_destroyed


def test_what_it_needs_is_said_before_it_is_tried() -> None:
    with pytest.raises(
        EngineError, match=r"nixl_ep needs a GPU, not cpu; bfloat16, not float32; a hidden size of 2048"
    ):
        check_nixl(256, torch.float32, CPU)
