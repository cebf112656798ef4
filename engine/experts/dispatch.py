"""Dispatch of tokens to their routed experts, and combination of the experts' outputs.

A token's expert outputs return in routing order, whatever rank computed them, and are added on the token's own rank.
The sum therefore does not depend on the expert placement.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.experts.permutation import ExpertRows, rows_by_slot, weighted_sum
from baton.engine.layers.experts import ROW_TILE
from baton.engine.parallel.rank_group import RankGroup

# Up to this many tokens on all ranks together, each rank sends all of its tokens to every other rank. That takes more
# bytes, but saves the exchange of row counts.
MAX_BROADCAST_TOKENS = 64


class Dispatch(Protocol):
    """Dispatch of one layer's tokens in flight."""

    def receive(self) -> ExpertRows:
        """Wait for the rows that this rank's experts must compute, and return them."""
        ...

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sums of the expert outputs, [num_tokens, hidden], added in routing order.

        outputs: of this rank's experts, one row per received row; weights: [num_tokens, num_chosen] of this rank's
        tokens.
        """
        ...


class ExpertExchange(Protocol):
    """Moves tokens between the ranks of a group."""

    def dispatch(self, x: Tensor, chosen: Tensor) -> Dispatch:
        """Start to send tokens x [num_tokens, hidden] to their experts, chosen [num_tokens, num_chosen]."""
        ...


class LocalExchange:
    """Exchange for a single rank with all experts, each in the slot of its own number."""

    def __init__(self, num_experts: int, row_tile: int = ROW_TILE) -> None:
        """Create the exchange; `row_tile` is that of the experts, see Experts."""
        self._num_experts = num_experts
        self._row_tile = row_tile

    def dispatch(self, x: Tensor, chosen: Tensor) -> "LocalDispatch":
        """Sort the tokens' rows by expert."""
        return LocalDispatch(rows_by_slot(x, None, chosen.flatten(), self._num_experts, self._row_tile))


@dataclass(frozen=True, slots=True)
class LocalDispatch:
    """Dispatch that stays on this rank."""

    rows: ExpertRows

    def receive(self) -> ExpertRows:
        """Return the rows without waiting."""
        return self.rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sums of the expert outputs, [num_tokens, hidden]."""
        return weighted_sum(outputs, self.rows.places, weights)


class ExpertRoutes:
    """Rank and slot of every replica of one layer's experts."""

    def __init__(self, num_experts: int, slots: Sequence[Sequence[int]], device: torch.device) -> None:
        """Index `slots`, the experts by rank and slot. Raises ValueError for an expert without a slot."""
        self.slots_per_rank = max(map(len, slots))
        replicas: list[list[int]] = [[] for _ in range(num_experts)]
        for rank, experts in enumerate(slots):
            for slot, expert in enumerate(experts):
                replicas[expert].append(rank * self.slots_per_rank + slot)
        missing = [expert for expert, places in enumerate(replicas) if not places]
        if missing:
            raise ValueError(f"no rank has experts {missing[:8]}")
        most = max(map(len, replicas))
        padded = [places + places[:1] * (most - len(places)) for places in replicas]
        # A replica is its rank * slots_per_rank + its slot.
        self._replicas = torch.tensor(padded, device=device)  # [num_experts, most]
        self._num_replicas = torch.tensor([len(places) for places in replicas], device=device)
        self._has_replicas = most > 1

    def of(self, chosen: Tensor, rank: int) -> Tensor:
        """Return a replica of each chosen expert, round-robin over its replicas; both [num_tokens, num_chosen]."""
        if not self._has_replicas:
            return self._replicas[:, 0][chosen]
        turn = torch.arange(rank, rank + len(chosen), device=chosen.device).unsqueeze(1)
        return self._replicas[chosen, turn % self._num_replicas[chosen]]


@dataclass(frozen=True, slots=True)
class LayerSlots:
    """Number of expert slots of a layer."""

    per_rank: int  # maximum over all ranks; replica numbers are based on it
    here: int  # on this rank


class DirectLink(Protocol):
    """Low-latency path between the ranks, for steps of few tokens."""

    def accepts(self, num_tokens: Sequence[int], slots_per_rank: int) -> bool:
        """Return whether a step with `num_tokens` tokens per rank uses this path; the same on all ranks."""
        ...

    def dispatch(self, x: Tensor, replicas: Tensor, slots: LayerSlots, on_rows: Callable[[int], None]) -> Dispatch:
        """Start to send tokens x [num_tokens, hidden] to replicas [num_tokens, num_chosen].

        Replicas are numbered as in `ExpertRoutes`. `on_rows` receives the number of rows that arrived here.
        """
        ...


class GroupExchange:
    """Exchange for one layer's experts spread over the ranks of a group; all ranks must call it in every step."""

    def __init__(self, group: RankGroup, num_experts: int, device: torch.device) -> None:
        self.group = group
        self.link: DirectLink | None = None
        self.routes: ExpertRoutes | None = None  # until the group is formed
        self.num_slots = 0  # on this rank
        self.row_tile = ROW_TILE  # tile of this rank's experts, see Experts; padding is never sent to other ranks
        self.counts = torch.zeros(num_experts, dtype=torch.int64, device=device)  # this rank's tokens, by expert
        self.num_rows = 0  # rows of all ranks' tokens computed here, since start

    def dispatch(self, x: Tensor, chosen: Tensor) -> Dispatch:
        """Start to send tokens x [num_tokens, hidden] to the experts `chosen`. Raises GroupBroken."""
        assert self.routes is not None, "the group was not formed"
        self.counts += chosen.flatten().bincount(minlength=len(self.counts))
        replicas, slots_per_rank = self.routes.of(chosen, self.group.view.rank), self.routes.slots_per_rank
        if self.link is not None and self.link.accepts(self.group.num_tokens, slots_per_rank):
            return self.link.dispatch(x, replicas, LayerSlots(slots_per_rank, self.num_slots), self.note_rows)
        return GroupDispatch(self, slots_per_rank, x, replicas)

    def note_rows(self, count: int) -> None:
        """Count rows received for this rank's experts."""
        self.num_rows += count


class GroupDispatch:
    """All-to-all dispatch. A row is sent as its bytes, followed by its token's replicas as int32."""

    def __init__(self, exchange: GroupExchange, slots_per_rank: int, x: Tensor, replicas: Tensor) -> None:
        self._exchange = exchange
        self._group = exchange.group
        self._slots_per_rank = slots_per_rank
        self._x = x
        self._ranks = replicas // slots_per_rank  # [num_tokens, num_chosen]
        self._rows: ExpertRows | None = None
        self._sources: list[int] = []  # number of entries computed here, by the rank of their tokens
        payload = torch.cat([x.contiguous().view(torch.uint8), replicas.int().view(torch.uint8)], dim=1)
        num_tokens, size = self._group.num_tokens, self._group.size
        if sum(num_tokens) <= MAX_BROADCAST_TOKENS:
            sent, self._received, data = [len(x)] * size, list(num_tokens), payload.repeat(size, 1)
        else:
            wanted = torch.stack([(self._ranks == rank).any(dim=1) for rank in range(size)])  # [size, num_tokens]
            sent = wanted.sum(dim=1).tolist()
            self._received = self._exchange_counts(sent)
            data = payload[wanted.nonzero()[:, 1]]
        self._arriving = payload.new_empty(sum(self._received), payload.shape[1])
        self._in_flight = self._group.exchange(self._arriving, data, self._received, sent)

    def receive(self) -> ExpertRows:
        """Wait for the rows of this rank's experts and return them. Raises GroupBroken."""
        self._in_flight.wait()
        row_bytes = self._x.shape[1] * self._x.itemsize
        rows = self._arriving[:, :row_bytes].contiguous().view(self._x.dtype)
        replicas = self._arriving[:, row_bytes:].contiguous().view(torch.int32).long()  # [num_rows, num_chosen]
        rank, slots_per_rank = self._group.view.rank, self._slots_per_rank
        is_ours = replicas // slots_per_rank == rank
        row_of = is_ours.nonzero()[:, 0]
        self._exchange.note_rows(len(row_of))
        per_row = is_ours.sum(dim=1)
        self._sources = [int(part.sum()) for part in per_row.split_with_sizes(self._received)]
        slots = replicas[is_ours] % slots_per_rank
        self._rows = rows_by_slot(rows, row_of, slots, self._exchange.num_slots, self._exchange.row_tile)
        return self._rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """Send outputs back and return the weighted sums of this rank's tokens, [num_tokens, hidden].

        Raises GroupBroken.
        """
        assert self._rows is not None
        hidden = self._x.shape[1]
        results = outputs[self._rows.places].view(-1, hidden).view(torch.uint8)
        flat = self._ranks.flatten()
        sent = flat.bincount(minlength=self._group.size).tolist()
        returned = results.new_empty(len(flat), results.shape[1])
        self._group.exchange(returned, results, sent, self._sources).wait()
        combined = torch.empty(len(flat), hidden, dtype=self._x.dtype, device=self._x.device)
        combined[flat.argsort(stable=True)] = returned.view(self._x.dtype)
        return weighted_sum(combined, None, weights)

    def _exchange_counts(self, sent: list[int]) -> list[int]:
        counts = torch.tensor(sent, dtype=torch.int64, device=self._x.device)
        received = torch.empty_like(counts)
        ones = [1] * self._group.size
        self._group.exchange(received, counts, ones, ones).wait()
        return received.tolist()
