"""Ranks that have one model together: each computes its part of every layer, and all have the sum.

Sums are added in fp32 in the order of the ranks, element by element: so all ranks have the same bits, and a token's
do not depend on which tokens are computed with it, nor on the run. Ranks choose experts alike because of that, which
asks that they run the same kernels: the same kind of processor, and the same number of threads.
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

# From so many bytes on each rank adds some of the rows and gives their sums to the others: that takes more turns, but
# fewer bytes. (4 ranks on one machine: 0.8 of the time for 512 KiB, 0.25 for 8 MiB; 1.4 for 64 KiB.)
MIN_SPLIT_BYTES = 1 << 18
FIRST_NUMBERS = 4096  # of a step, in one message; more of them need a second


class TensorRanks(Protocol):
    """What a model asks of the ranks that it is divided among."""

    @property
    def shard(self) -> TensorShard:
        """Our part."""
        ...

    def sum(self, x: Tensor) -> Tensor:
        """x: [num_rows, width], what this rank has of each element; ours to change. Returns the same on every rank."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """x: [num_rows, width], our columns. Returns [num_rows, size * width] at the first rank, x at the others."""
        ...


class OneRank:
    """A model that is not divided."""

    shard = TensorShard()

    def sum(self, x: Tensor) -> Tensor:
        """See TensorRanks."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """See TensorRanks."""
        return x


ONE_RANK = OneRank()


class TensorGroup:
    """Owns the ranks of one model. It is formed once: without any one of them the others have no model either."""

    def __init__(
        self, membership: Membership, host: str, device: torch.device, size: int, has_whole_experts: bool = False
    ) -> None:
        """host: the address of this rank's interface; size: number of ranks; the rest is as in TensorShard."""
        self._has_whole_experts = has_whole_experts
        self._ranks = RankGroup(membership, host, device)
        self._size = size

    @property
    def shard(self) -> TensorShard:
        """Our part; the first rank leads."""
        return TensorShard(self._ranks.view.rank, self._size, self._has_whole_experts)

    @property
    def is_broken(self) -> bool:
        """Whether a rank is known to be gone."""
        return not self._ranks.is_current

    @property
    def is_waiting(self) -> bool:
        """Whether other ranks are waited for; may be asked on any thread."""
        return self._ranks.is_waiting

    def check(self) -> None:
        """Raises GroupBroken if a rank is known to be gone."""
        if self.is_broken:
            raise GroupBroken("a rank of this worker is gone")
        self._ranks.check_epoch()

    def form(self) -> None:
        """Waits for all ranks. Raises EngineError if there are too many, EngineEnded if this one has left."""
        while not self._ranks.is_formed:
            self._ranks.form()
            num_ranks = self._ranks.size
            if num_ranks != self._size:
                self._ranks.drop()
            if num_ranks > self._size:
                raise EngineError(f"a tensor-parallel group of {self._size} ranks has {num_ranks} members")

    def agree(self, names: Sequence[str], numbers: Sequence[int]) -> None:
        """All ranks must have the same numbers. Raises EngineError that says by name which differ, and GroupBroken."""
        first, *others = self._ranks.gather(numbers)
        for rank, theirs in enumerate(others, start=1):
            differ = [name for name, a, b in zip(names, first, theirs, strict=True) if a != b]
            if differ:
                raise EngineError(
                    f"rank {rank} differs from the first one in {', '.join(differ)}: ranks of one model need the same "
                    "checkpoint and options"
                )

    def least(self, number: int) -> int:
        """The least of all ranks' numbers. Raises GroupBroken."""
        return min(theirs[0] for theirs in self._ranks.gather([number]))

    def meet(self) -> None:
        """Waits until every rank has come here, however long that takes. Raises GroupBroken."""
        self._ranks.meet()

    def sum(self, x: Tensor) -> Tensor:
        """See TensorRanks. Raises GroupBroken."""
        if self._size == 1 or not len(x):
            return x
        if self._size == 2:  # no order to keep, and twice as fast as what keeps it
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
        """See TensorRanks. Raises GroupBroken."""
        num_rows, width = x.shape
        is_first = self._ranks.view.rank == 0
        if not num_rows:
            return x.new_empty(0, width * self._size) if is_first else x
        received = [num_rows if is_first else 0] * self._size
        columns = self._exchange(x, received, [num_rows] + [0] * (self._size - 1))
        return columns.view(self._size, num_rows, width).transpose(0, 1).flatten(1) if is_first else x

    def tell(self, batch: Batch) -> None:
        """The first rank says what is computed next. Raises GroupBroken."""
        numbers = pack(batch)
        first = numbers.new_zeros(FIRST_NUMBERS)
        first[0] = len(numbers)
        first[1 : 1 + len(numbers)] = numbers[: FIRST_NUMBERS - 1]
        self._ranks.tell(first)
        if len(numbers) > FIRST_NUMBERS - 1:
            self._ranks.tell(numbers[FIRST_NUMBERS - 1 :])

    def listen(self) -> Batch:
        """What the first rank says, however long it has nothing to say. Raises GroupBroken."""
        first = self._ranks.listen(FIRST_NUMBERS)
        count = int(first[0])
        numbers = first[1 : 1 + count]
        if count > len(numbers):
            numbers = torch.cat([numbers, self._ranks.listen(count - len(numbers))])
        return unpack(numbers)

    def leave(self) -> None:
        """Waits for no other rank from now on; may be called on any thread."""
        self._ranks.leave()

    def close(self) -> None:
        """Ends the group, once no step is under way: the others notice."""
        self._ranks.close()

    def _all_of(self, x: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        """Every rank's rows, one rank after the other; `counts` says how many each has, if not all as many as we."""
        return self._exchange(x.repeat(self._size, 1), counts or [len(x)] * self._size, [len(x)] * self._size)

    def _exchange(self, x: Tensor, received: Sequence[int], sent: Sequence[int]) -> Tensor:
        data = x.contiguous().view(torch.uint8)
        output = data.new_empty(sum(received), data.shape[1])
        self._ranks.exchange(output, data, received, sent).wait()
        return output.view(x.dtype)


def _add(parts: Tensor) -> Tensor:
    """parts: [size, num_rows, width], ours to change. Returns [num_rows, width]."""
    total = parts[0].float()
    for part in parts[1:]:
        total += part
    return total.to(parts.dtype)
