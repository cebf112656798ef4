"""Which rank of an expert-parallel group holds which experts of one layer, in which of its slots; no torch."""

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReplicaTables:
    """The physical slots of every expert as arrays, for whoever sends tokens to them."""

    replica_table: IntArray  # [num_experts, max_replicas]; a shorter row repeats its slots from the first on
    num_replicas: IntArray  # [num_experts]


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """The logical expert of every slot of every rank, in one layer.

    A physical slot is rank * slots_per_rank + place. All ranks have equally many slots, every expert stands in one at
    least, and none stands twice on one rank unless a rank has more slots than there are experts.
    """

    num_experts: int
    slots: tuple[tuple[int, ...], ...]  # [rank][place]

    def __post_init__(self) -> None:
        if self.num_experts < 1:
            raise ValueError(f"a placement needs one expert at least, not {self.num_experts}")
        if not self.slots or not self.slots[0]:
            raise ValueError("a placement needs one rank at least, and one slot at each")
        for rank, experts in enumerate(self.slots):
            self._check_rank(rank, experts)
        missing = set(range(self.num_experts)).difference(*self.slots)
        if missing:
            raise ValueError(f"no rank holds expert {min(missing)}, nor {len(missing) - 1} others: each must stand")

    def _check_rank(self, rank: int, experts: tuple[int, ...]) -> None:
        if len(experts) != self.slots_per_rank:
            raise ValueError(f"rank {rank} has {len(experts)} slots, rank 0 {self.slots_per_rank}: must be equal")
        wrong = [expert for expert in experts if not 0 <= expert < self.num_experts]
        if wrong:
            raise ValueError(f"rank {rank} holds expert {wrong[0]}; experts are 0 to {self.num_experts - 1}")
        if self.slots_per_rank <= self.num_experts and len(set(experts)) < len(experts):
            twice = next(expert for expert in experts if experts.count(expert) > 1)
            raise ValueError(f"rank {rank} holds expert {twice} twice, which needs more slots a rank than experts")

    @property
    def num_ranks(self) -> int:
        """How many ranks hold experts."""
        return len(self.slots)

    @property
    def slots_per_rank(self) -> int:
        """How many experts each rank holds."""
        return len(self.slots[0])

    @property
    def num_slots(self) -> int:
        """Of all ranks."""
        return self.num_ranks * self.slots_per_rank

    def replicas(self, expert: int) -> tuple[int, ...]:
        """The physical slots of one expert, ascending."""
        if not 0 <= expert < self.num_experts:
            raise ValueError(f"there is no expert {expert}; experts are 0 to {self.num_experts - 1}")
        flat = (held for experts in self.slots for held in experts)
        return tuple(slot for slot, held in enumerate(flat) if held == expert)

    def counts(self) -> IntArray:
        """How many replicas each expert has, [num_experts]."""
        return np.bincount(self.as_array().ravel(), minlength=self.num_experts).astype(np.int64)

    def as_array(self) -> IntArray:
        """The slots, [num_ranks, slots_per_rank]."""
        return np.array(self.slots, dtype=np.int64)

    def replica_tables(self) -> ReplicaTables:
        """The tables to send tokens by: replica_table[expert, any number % max_replicas] is one of its slots."""
        counts = self.counts()
        by_expert = np.argsort(self.as_array().ravel(), kind="stable")  # each expert's slots in a row, ascending
        first = np.cumsum(counts) - counts
        columns = np.arange(counts.max(), dtype=np.int64)
        table = by_expert[first[:, None] + columns[None, :] % counts[:, None]]
        return ReplicaTables(replica_table=table.astype(np.int64), num_replicas=counts)

    def to_json(self) -> str:
        """One line that from_json reads."""
        return json.dumps({"num_experts": self.num_experts, "slots": self.slots})

    @classmethod
    def from_json(cls, text: str) -> "ExpertPlacement":
        """Reads what to_json wrote; ValueError for anything else."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.keys() != {"num_experts", "slots"}:
            raise ValueError('a placement in JSON is {"num_experts": N, "slots": [[expert, ...], ...]}')
        num_experts, slots = values["num_experts"], values["slots"]
        if not isinstance(slots, list) or not all(isinstance(experts, list) for experts in slots):
            raise ValueError("slots of a placement in JSON must be a list of lists, one for each rank")
        if not all(type(value) is int for value in (num_experts, *(e for experts in slots for e in experts))):
            raise ValueError("num_experts and the slots of a placement in JSON must be whole numbers")
        return cls(num_experts, tuple(tuple(experts) for experts in slots))


def num_slots_per_rank(num_experts: int, num_ranks: int, num_redundant: int) -> int:
    """Slots of each rank for all experts and so many replicas beyond them; what does not divide evenly is rounded up.

    ValueError for sizes that are none.
    """
    if num_experts < 1 or num_ranks < 1 or num_redundant < 0:
        raise ValueError(
            f"{num_experts} experts and {num_redundant} redundant ones on {num_ranks} ranks cannot be placed: "
            "there must be one expert and one rank at least, and no fewer than 0 redundant"
        )
    return -(-(num_experts + num_redundant) // num_ranks)


def contiguous(num_experts: int, num_ranks: int, num_redundant: int = 0) -> ExpertPlacement:
    """The placement while no loads are known: each rank holds experts that follow each other.

    Ranks begin at evenly spaced experts and go on around the end, so that slots beyond one for each expert hold the
    first experts of the ranks that follow, and equal loads weigh on the ranks as evenly as they can.
    """
    slots_per_rank = num_slots_per_rank(num_experts, num_ranks, num_redundant)
    starts = (rank * num_experts // num_ranks for rank in range(num_ranks))
    slots = (tuple((start + place) % num_experts for place in range(slots_per_rank)) for start in starts)
    return ExpertPlacement(num_experts, tuple(slots))
