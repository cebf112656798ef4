"""Expert dispatch by `nixl_ep`, as far as possible without a GPU: the calls made, and the use of their results.

A few lines that move rows between threads replace its kernels, with the shapes that its documentation gives.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import Store

from baton.engine.errors import EngineError, GroupBroken
from baton.engine.experts.dispatch import ExpertRoutes, LayerSlots
from baton.engine.experts.nixl_dispatch import MAX_TOKENS, NixlLink, check_nixl, num_buffer_ranks
from baton.engine.layers.experts import ROW_TILE, Expert, Experts
from baton.engine.layers.linear import Linear
from baton.engine.parallel.rank_group import RankGroup
from tests.unit.engine import group_rig

CPU = torch.device("cpu")
HIDDEN, INNER = 16, 32


class Fabric:
    """Rows sent by all ranks, by slot."""

    def __init__(self, size: int, slots_per_rank: int) -> None:
        self.size = size
        self.slots_per_rank = slots_per_rank
        self.sent: dict[int, tuple[Tensor, Tensor]] = {}
        self.results: dict[int, Tensor] = {}
        self.places: dict[tuple[int, int, int], tuple[int, int]] = {}  # (rank, token, k) to slot and row
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
            for rank in reversed(range(fabric.size)):  # rows may arrive in any order
                rows, chosen = fabric.sent[rank]
                for token, k in (chosen // fabric.slots_per_rank == self._rank).nonzero().tolist():
                    slot = int(chosen[token, k]) % fabric.slots_per_rank
                    received[slot, counts[slot]] = rows[token]
                    fabric.places[rank, token, k] = (int(chosen[token, k]), int(counts[slot]))
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
        for token, k in torch.ones_like(topk_idx).nonzero().tolist():
            place, row = fabric.places[self._rank, token, k]
            rank, slot = divmod(place, fabric.slots_per_rank)
            combined[token] += topk_weights[token, k] * fabric.results[rank][slot, row].float()
        fabric.meeting.wait(10)
        return combined.bfloat16(), None, None

    def query_mask_buffer(self, mask_status: Tensor) -> None:
        assert len(mask_status) == num_buffer_ranks(self._fabric.size)
        mask_status[self._fabric.masked] = 1

    def destroy(self) -> None:
        self.is_destroyed = True


def link_of(fabric: Fabric, rank: int) -> NixlLink:
    return NixlLink(ThreadBuffer(fabric, rank), fabric.size, fabric.slots_per_rank, CPU)


def make_expert(number: int) -> Expert:
    draw = torch.Generator().manual_seed(number)
    gate_up, down = (
        torch.randn(*shape, generator=draw).bfloat16() / 4 for shape in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
    )
    return Expert(Linear(gate_up, packed=False), Linear(down, packed=False))


def reference(x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of each token's experts, computed without dispatch."""
    results = torch.zeros(len(x), HIDDEN)
    for token, k in torch.ones_like(chosen).nonzero().tolist():
        rows = x[token].expand(ROW_TILE, HIDDEN).contiguous()
        expert = Experts([make_expert(int(chosen[token, k]))])
        results[token] += weights[token, k] * expert(rows, [ROW_TILE])[0].float()
    return results


def on_ranks(fabric: Fabric, run: Callable[[int, NixlLink], Any]) -> list[Any]:
    links = [link_of(fabric, rank) for rank in range(fabric.size)]
    with ThreadPoolExecutor(fabric.size) as threads:
        return list(threads.map(run, range(fabric.size), links))


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("num_tokens", [[3, 5], [0, 1], [MAX_TOKENS, 0], [0, 0]])
@pytest.mark.parametrize("slots", [[[0, 2, 1], [1, 3]], [[0, 1, 2, 3], []]])  # expert 1 is on both ranks, or on none
def test_every_token_gets_the_results_of_its_experts(
    slots: list[list[int]], num_tokens: list[int], is_grouped: bool
) -> None:
    routes = ExpertRoutes(4, slots, CPU)
    fabric = Fabric(2, slots_per_rank=5)  # room for more than the layer has
    num_arrived: list[int] = []

    def run(rank: int, link: NixlLink) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(rank)
        x = torch.randn(num_tokens[rank], HIDDEN, generator=draw).bfloat16()
        chosen = torch.stack([torch.randperm(4, generator=draw)[:2] for _ in x]) if len(x) else torch.zeros(0, 2).long()
        weights = torch.rand(len(x), 2, generator=draw)
        replicas = routes.of(chosen, rank)
        assert link.accepts(num_tokens, routes.slots_per_rank)
        experts = Experts([make_expert(expert) for expert in slots[rank]], is_grouped=is_grouped)
        dispatch = link.dispatch(x, replicas, LayerSlots(routes.slots_per_rank, len(slots[rank])), num_arrived.append)
        arrived = dispatch.receive()
        return dispatch.combine(experts(arrived.rows, arrived.sizes), weights).float(), reference(x, chosen, weights)

    for combined, expected in on_ranks(fabric, run):
        torch.testing.assert_close(combined, expected, atol=0.05, rtol=0.02)
    assert sum(num_arrived) == 2 * sum(num_tokens)


def test_the_link_declines_steps_that_are_too_large() -> None:
    link = link_of(Fabric(2, 4), 0)
    assert link.accepts([MAX_TOKENS, 0], 4)
    assert not link.accepts([0, MAX_TOKENS + 1], 4)
    assert not link.accepts([1, 1], 5)  # more slots than there is room for


def test_a_rank_that_does_not_respond_breaks_the_group() -> None:
    fabric = Fabric(1, 2)
    fabric.masked = [0]
    buffer = ThreadBuffer(fabric, 0)
    link = NixlLink(buffer, 1, 2, CPU)
    slots = LayerSlots(2, 2)
    dispatch = link.dispatch(torch.ones(1, HIDDEN).bfloat16(), torch.tensor([[0, 1]]), slots, lambda _: None)
    arrived = dispatch.receive()
    with pytest.raises(GroupBroken, match=r"ranks \[0\] did not respond within 10 s"):
        dispatch.combine(arrived.rows, torch.ones(1, 2))
    link.close()
    assert buffer.is_destroyed


def test_unmet_requirements_are_all_reported() -> None:
    with pytest.raises(
        EngineError,
        match=r"nixl_ep needs a GPU, not cpu; bfloat16, not float32; a hidden size of 2048.*; "
        r"at most 11 experts per token, not 12\. Use all_to_all",
    ):
        check_nixl(256, 12, torch.float32, CPU)


@pytest.mark.parametrize(("num_ranks", "places"), [(2, 2), (7, 7), (8, 8), (9, 16), (16, 16), (23, 24)])
def test_buffers_beyond_one_node_cover_whole_nodes(num_ranks: int, places: int) -> None:
    """As the library requires. Missing ranks stay masked and do not count as ranks that did not respond."""
    assert num_buffer_ranks(num_ranks) == places
    fabric = Fabric(num_ranks, 1)
    fabric.masked = list(range(num_ranks, places))
    link = link_of(fabric, 0)
    link.check()
    fabric.masked.append(num_ranks - 1)
    with pytest.raises(GroupBroken, match=rf"ranks \[{num_ranks - 1}\] did not respond"):
        link.check()


class Library:
    """The calls to `nixl_ep` when ranks connect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: dict[int, LibraryBuffer] = {}
        self.fails_in = ""
        library = ModuleType("nixl_ep")
        library.Buffer = partial(LibraryBuffer, self)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "nixl_ep", library)
        processors = SimpleNamespace(multi_processor_count=2)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: processors)


class LibraryBuffer:
    """A buffer that fails to connect ranks."""

    def __init__(self, library: Library, rank: int, tcp_store_group: Store, **options: object) -> None:
        assert options == {"explicitly_destroy": True, "low_latency_mode": True, "timeout_ms": 10_000}
        tcp_store_group.set(f"NIXL_EP/{rank}", "metadata")
        self._library = library
        self._store = tcp_store_group
        self.is_destroyed = False
        library.made[rank] = self

    def get_low_latency_buffer_size_hint(self, num_tokens: int, hidden: int, num_ranks: int, num_experts: int) -> int:
        return num_tokens * hidden * num_experts

    def update_memory_buffers(self, num_ranks: int, num_experts_per_rank: int, num_rdma_bytes: int) -> None:
        if self._library.fails_in == "memory":
            raise RuntimeError("CUDA error: out of memory")
        self.sizes = (num_ranks, num_experts_per_rank, num_rdma_bytes)

    def connect_ranks(self, remote_ranks: list[int]) -> None:
        assert self._store.check([f"NIXL_EP/{rank}" for rank in remote_ranks]), "it would wait for missing ranks"
        if self._library.fails_in == "connecting":
            raise RuntimeError("Failed to get metadata")

    def destroy(self) -> None:
        self.is_destroyed = True


def connect(ranks: RankGroup, slots_per_rank: int) -> NixlLink:
    return NixlLink.connect(ranks, CPU, 2048, slots_per_rank)


def test_ranks_connect_once_all_have_their_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    links = group_rig.on_ranks(3, partial(connect, slots_per_rank=4))
    assert [link.num_slots for link in links] == [12] * 3
    assert [library.made[rank].sizes for rank in range(3)] == [(3, 4, MAX_TOKENS * 2048 * 12)] * 3


def test_a_rank_without_memory_for_its_buffers_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not GroupBroken, since a new epoch would not help."""
    Library(monkeypatch).fails_in = "memory"
    with pytest.raises(EngineError, match=r"failed to create its buffers: CUDA error: out of memory\. Use") as raised:
        group_rig.on_ranks(2, partial(connect, slots_per_rank=4))
    assert not isinstance(raised.value, GroupBroken)


def test_buffers_of_ranks_that_do_not_connect_are_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    library.fails_in = "connecting"

    def try_to_connect(ranks: RankGroup) -> None:
        with pytest.raises(GroupBroken, match="did not connect the ranks: Failed to get metadata"):
            connect(ranks, 4)

    group_rig.on_ranks(2, try_to_connect)
    assert [library.made[rank].is_destroyed for rank in range(2)] == [True, True]


def test_more_slots_than_the_kernels_support_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Library(monkeypatch)
    with pytest.raises(EngineError, match="at most 28 slots of all ranks on this GPU, not 30: use fewer redundant"):
        group_rig.on_ranks(2, partial(connect, slots_per_rank=15))
