"""How tokens get to the experts that they chose, and the experts' results back.

The results of a token come back in the order in which it chose its experts, whatever rank computed them, and are added
where the token is: so the sum does not depend on where the experts stand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.experts.permutation import ExpertRows, rows_by_slot, weighted_sum
from baton.engine.layers.experts import ROW_TILE
from baton.engine.parallel.rank_group import RankGroup

# With at most so many tokens on all ranks each rank sends all of its own to every other: that takes more bytes, but
# nobody needs to be told first how many rows will come.
MAX_BROADCAST_TOKENS = 64


class Dispatch(Protocol):
    """Tokens on their way to experts and back."""

    def arrive(self) -> ExpertRows:
        """Waits for the rows that this rank's experts are to compute."""
        ...

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """outputs: what the experts made of the rows; weights: [num_tokens, num_chosen], of our own tokens.

        Returns their weighted sums, [num_tokens, hidden], added in the order chosen.
        """
        ...


class ExpertExchange(Protocol):
    """Moves tokens between the ranks of a group."""

    def dispatch(self, x: Tensor, chosen: Tensor) -> Dispatch:
        """x: [num_tokens, hidden]; chosen: [num_tokens, num_chosen] experts. Begins to send them."""
        ...


class LocalExchange:
    """All experts stand here, each in the slot of its own number."""

    def __init__(self, num_experts: int, row_tile: int = ROW_TILE) -> None:
        """row_tile: of the experts, see Experts."""
        self._num_experts = num_experts
        self._row_tile = row_tile

    def dispatch(self, x: Tensor, chosen: Tensor) -> "LocalDispatch":
        """See ExpertExchange."""
        return LocalDispatch(rows_by_slot(x, None, chosen.flatten(), self._num_experts, self._row_tile))


@dataclass(frozen=True, slots=True)
class LocalDispatch:
    """See Dispatch."""

    rows: ExpertRows

    def arrive(self) -> ExpertRows:
        """At once."""
        return self.rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """See Dispatch."""
        return weighted_sum(outputs, self.rows.places, weights)


class ExpertRoutes:
    """Where the experts of one layer stand: every replica's rank and slot."""

    def __init__(self, num_experts: int, slots: Sequence[Sequence[int]], device: torch.device) -> None:
        """slots: the expert in each slot, by rank. Raises ValueError for an expert that stands nowhere."""
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
        """chosen: [num_tokens, num_chosen] experts. Returns a replica of each, in turns."""
        if not self._has_replicas:
            return self._replicas[:, 0][chosen]
        turn = torch.arange(rank, rank + len(chosen), device=chosen.device).unsqueeze(1)
        return self._replicas[chosen, turn % self._num_replicas[chosen]]


@dataclass(frozen=True, slots=True)
class LayerSlots:
    """How many slots the experts of a layer stand in."""

    per_rank: int  # the most of any rank; replicas are numbered by it
    here: int


class DirectLink(Protocol):
    """Another way between the ranks, for steps of few tokens."""

    def takes(self, num_tokens: Sequence[int], slots_per_rank: int) -> bool:
        """Whether a step of so many tokens on each rank goes this way; the same on all ranks."""
        ...

    def dispatch(self, x: Tensor, replicas: Tensor, slots: LayerSlots, on_rows: Callable[[int], None]) -> Dispatch:
        """See ExpertExchange; replicas as `ExpertRoutes` numbers them. `on_rows` hears how many rows came."""
        ...


class GroupExchange:
    """The experts of one layer stand on all ranks of a group; all of them call this for each step."""

    def __init__(self, group: RankGroup, num_experts: int, device: torch.device) -> None:
        self.group = group
        self.link: DirectLink | None = None
        self.routes: ExpertRoutes | None = None  # until the group is formed
        self.num_slots = 0  # here
        self.row_tile = ROW_TILE  # of the experts here, see Experts; padding does not leave a rank
        self.counts = torch.zeros(num_experts, dtype=torch.int64, device=device)  # this rank's tokens
        self.num_rows = 0  # of all ranks' tokens that were computed here, since the start

    def dispatch(self, x: Tensor, chosen: Tensor) -> Dispatch:
        """See ExpertExchange. Raises GroupBroken."""
        assert self.routes is not None, "the group was not formed"
        self.counts += chosen.flatten().bincount(minlength=len(self.counts))
        replicas, slots_per_rank = self.routes.of(chosen, self.group.view.rank), self.routes.slots_per_rank
        if self.link is not None and self.link.takes(self.group.num_tokens, slots_per_rank):
            return self.link.dispatch(x, replicas, LayerSlots(slots_per_rank, self.num_slots), self.note_rows)
        return GroupDispatch(self, slots_per_rank, x, replicas)

    def note_rows(self, count: int) -> None:
        """So many rows came to be computed here."""
        self.num_rows += count


class GroupDispatch:
    """See Dispatch. A row travels as its bytes, followed by its token's replicas as int32."""

    def __init__(self, exchange: GroupExchange, slots_per_rank: int, x: Tensor, replicas: Tensor) -> None:
        self._exchange = exchange
        self._group = exchange.group
        self._slots_per_rank = slots_per_rank
        self._x = x
        self._ranks = replicas // slots_per_rank  # [num_tokens, num_chosen]
        self._rows: ExpertRows | None = None
        self._sources: list[int] = []  # entries computed here, by the rank whose tokens they are
        payload = torch.cat([x.contiguous().view(torch.uint8), replicas.int().view(torch.uint8)], dim=1)
        num_tokens, size = self._group.num_tokens, self._group.size
        if sum(num_tokens) <= MAX_BROADCAST_TOKENS:
            sent, self._received, data = [len(x)] * size, list(num_tokens), payload.repeat(size, 1)
        else:
            wanted = torch.stack([(self._ranks == rank).any(dim=1) for rank in range(size)])  # [size, num_tokens]
            sent = wanted.sum(dim=1).tolist()
            self._received = self._counts_from_others(sent)
            data = payload[wanted.nonzero()[:, 1]]
        self._arriving = payload.new_empty(sum(self._received), payload.shape[1])
        self._exchange_under_way = self._group.exchange(self._arriving, data, self._received, sent)

    def arrive(self) -> ExpertRows:
        """See Dispatch. Raises GroupBroken."""
        self._exchange_under_way.wait()
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
        """See Dispatch. Raises GroupBroken."""
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

    def _counts_from_others(self, sent: list[int]) -> list[int]:
        counts = torch.tensor(sent, dtype=torch.int64, device=self._x.device)
        received = torch.empty_like(counts)
        ones = [1] * self._group.size
        self._group.exchange(received, counts, ones, ones).wait()
        return received.tolist()
