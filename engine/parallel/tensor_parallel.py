"""Tensor-parallel ranks: each computes its shard of every layer, and all get the sum.

Sums are added element by element in fp32 and in rank order. All ranks therefore have the same bits, and a token's
result does not depend on the other tokens in its batch, nor on the run. Expert routing relies on this to be the same on
all ranks; that also requires the same kernels, i.e. the same kind of processor and number of threads.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.errors import EngineError, GroupBroken
from baton.engine.execution.batch import Batch, pack, unpack
from baton.engine.parallel.group_view import Membership
from baton.engine.parallel.rank_group import RankGroup
from baton.engine.parallel.tensor_shard import TensorShard

# From this size on, each rank adds some of the rows and sends their sums to the others (reduce-scatter, all-gather):
# more rounds, but fewer bytes. (4 ranks on one machine: 0.8 of the time for 512 KiB, 0.25 for 8 MiB; 1.4 for 64 KiB.)
MIN_SPLIT_BYTES = 1 << 18
FIRST_NUMBERS = 4096  # numbers in a step's first message; longer batches need a second one


class TensorRanks(Protocol):
    """Collectives that a sharded model uses."""

    @property
    def shard(self) -> TensorShard:
        """This rank's shard."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' partial x [num_rows, width], the same on every rank. May modify x."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Gather columns x [num_rows, width]: returns [num_rows, size * width] on rank 0, x on the others."""
        ...


class OneRank:
    """Collectives of a model that is not sharded."""

    shard = TensorShard()

    def sum(self, x: Tensor) -> Tensor:
        """Return x."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


ONE_RANK = OneRank()


class TensorGroup:
    """Ranks of one sharded model. It forms only once: if one rank is lost, the model is incomplete."""

    def __init__(
        self,
        membership: Membership,
        host: str,
        device: torch.device,
        size: int,
        has_whole_experts: bool = False,
        ranks_per_node: int | None = None,
    ) -> None:
        """Create the group without forming it.

        host: address of this rank's interface; size: number of ranks; has_whole_experts: as in TensorShard;
        ranks_per_node: how many consecutive ranks share a node. Default: all.
        """
        self._ranks_per_node = ranks_per_node or size
        self._has_whole_experts = has_whole_experts
        self._ranks = RankGroup(membership, host, device)
        self._size = size

    @property
    def shard(self) -> TensorShard:
        """This rank's shard; rank 0 leads."""
        return TensorShard(self._ranks.view.rank, self._size, self._has_whole_experts)

    @property
    def place_on_node(self) -> tuple[int, int]:
        """Place of this rank among those of its node, and their number."""
        return self._ranks.view.rank % self._ranks_per_node, self._ranks_per_node

    @property
    def is_broken(self) -> bool:
        """Whether a rank is known to be lost."""
        return not self._ranks.is_current

    @property
    def is_waiting(self) -> bool:
        """Whether this rank waits for other ranks; may be read from any thread."""
        return self._ranks.is_waiting

    @property
    def has_left(self) -> bool:
        """Whether this rank has left the group for good; may be read from any thread."""
        return self._ranks.has_left

    def check(self) -> None:
        """Raise GroupBroken if a rank is known to be lost."""
        if self.is_broken:
            raise GroupBroken("a rank of this worker is lost")
        self._ranks.check_epoch()

    def form(self) -> None:
        """Wait for all ranks. Raises EngineError if there are too many, EngineEnded if this one has left."""
        while not self._ranks.is_formed:
            self._ranks.form()
            num_ranks = self._ranks.size
            if num_ranks != self._size:
                self._ranks.drop()
            if num_ranks > self._size:
                raise EngineError(f"a tensor-parallel group of {self._size} ranks has {num_ranks} members")

    def agree(self, names: Sequence[str], numbers: Sequence[int], spec: str = "d") -> None:
        """Check that all ranks have the same numbers. Raises EngineError naming those that differ, or GroupBroken.

        spec: format of the numbers in the error.
        """
        first, *others = self._ranks.gather(numbers)
        for rank, theirs in enumerate(others, start=1):
            pairs = zip(names, first, theirs, strict=True)
            differ = [f"{name} ({theirs:{spec}}, not {ours:{spec}})" for name, ours, theirs in pairs if ours != theirs]
            if differ:
                raise EngineError(
                    f"rank {rank} differs from rank 0 in {', '.join(differ)}: ranks of one model need the same "
                    "checkpoint and options"
                )

    def minimum(self, number: int) -> int:
        """Return the minimum of all ranks' numbers. Raises GroupBroken."""
        return min(theirs[0] for theirs in self._ranks.gather([number]))

    def barrier(self) -> None:
        """Wait until every rank has reached this barrier, without a timeout. Raises GroupBroken."""
        self._ranks.barrier()

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of all ranks' partial x [num_rows, width], the same on every rank. May modify x.

        Raises GroupBroken.
        """
        if self._size == 1 or not len(x):
            return x
        if self._size == 2:  # two summands have no order to keep, and an all-reduce is twice as fast
            x = x.contiguous()
            self._ranks.add(x).wait()
            return x
        if x.nbytes < MIN_SPLIT_BYTES:
            return _add(self._all_of(x).view(self._size, *x.shape))
        counts = [len(x) * (rank + 1) // self._size - len(x) * rank // self._size for rank in range(self._size)]
        ours = counts[self._ranks.view.rank]
        parts = self._exchange(x, [ours] * self._size, counts).view(self._size, ours, x.shape[1])
        return self._all_of(_add(parts), counts)

    def gather(self, x: Tensor) -> Tensor:
        """Gather columns x [num_rows, width]: returns [num_rows, size * width] on rank 0, x on the others.

        Raises GroupBroken.
        """
        num_rows, width = x.shape
        is_first = self._ranks.view.rank == 0
        if not num_rows:
            return x.new_empty(0, width * self._size) if is_first else x
        received = [num_rows if is_first else 0] * self._size
        columns = self._exchange(x, received, [num_rows] + [0] * (self._size - 1))
        return columns.view(self._size, num_rows, width).transpose(0, 1).flatten(1) if is_first else x

    def broadcast(self, batch: Batch) -> None:
        """Broadcast the next batch from rank 0. Raises GroupBroken."""
        numbers = pack(batch)
        first = numbers.new_zeros(FIRST_NUMBERS)
        first[0] = len(numbers)
        first[1 : 1 + len(numbers)] = numbers[: FIRST_NUMBERS - 1]
        self._ranks.broadcast(first)
        if len(numbers) > FIRST_NUMBERS - 1:
            self._ranks.broadcast(numbers[FIRST_NUMBERS - 1 :])

    def receive_broadcast(self) -> Batch:
        """Wait, without a timeout, for the next batch from rank 0. Raises GroupBroken."""
        first = self._ranks.receive_broadcast(FIRST_NUMBERS)
        count = int(first[0])
        numbers = first[1 : 1 + count]
        if count > len(numbers):
            numbers = torch.cat([numbers, self._ranks.receive_broadcast(count - len(numbers))])
        return unpack(numbers)

    def copy_from_rank0(self, x: Tensor) -> None:
        """Replace x [num_rows, width], contiguous and on the model's device, by rank 0's. Raises GroupBroken."""
        if self._size > 1:
            self._ranks.copy_from_rank0(x.view(torch.uint8)).wait()

    def broadcast_counts(self, counts: Sequence[int]) -> None:
        """Broadcast how many new tokens of each sequence with drafts are right, from rank 0. Raises GroupBroken."""
        self._ranks.broadcast(torch.tensor(counts, dtype=torch.int64))

    def receive_counts(self, num_drafted: int) -> list[int]:
        """Wait for the counts of the `num_drafted` sequences with drafts in the last batch. Raises GroupBroken."""
        counts: list[int] = self._ranks.receive_broadcast(num_drafted).tolist()
        return counts

    def leave(self) -> None:
        """Stop waiting for other ranks, for good; may be called on any thread."""
        self._ranks.leave()

    def close(self) -> None:
        """End the group, between steps; the other ranks' collectives then fail."""
        self._ranks.close()

    def _all_of(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """All-gather rows in rank order; `counts` are the rows of each rank, if not all equal to this rank's."""
        return self._exchange(x.repeat(self._size, 1), counts or [len(x)] * self._size, [len(x)] * self._size)

    def _exchange(self, x: Tensor, received: Sequence[int], sent: Sequence[int]) -> Tensor:
        data = x.contiguous().view(torch.uint8)
        output = data.new_empty(sum(received), data.shape[1])
        self._ranks.exchange(output, data, received, sent).wait()
        return output.view(x.dtype)


def _add(parts: Tensor) -> Tensor:
    """Add parts [size, num_rows, width] in rank order in fp32; returns [num_rows, width]."""
    total = parts[0].float()
    for part in parts[1:]:
        total += part
    return total.to(parts.dtype)
