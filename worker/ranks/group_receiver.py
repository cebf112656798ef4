"""A request's blocks on their way into the pools of all of a worker's ranks."""

from collections.abc import Sequence

from baton.kvtransfer.all_or_none import all_or_none
from baton.kvtransfer.receiver import Intake
from baton.worker.ranks.base import BlockIntake


class GroupIntake:
    """What every rank receives; a block is here once it is on all of them. See `BlockIntake`."""

    def __init__(self, own: Intake, others: Sequence[BlockIntake] = ()) -> None:
        """own: the first rank's, which is in this process."""
        self._own = own
        self._all: list[BlockIntake] = [own, *others]

    @property
    def transport(self) -> str:
        """See BlockIntake."""
        return "+".join(sorted({name for each in self._all for name in each.transport.split("+")}))

    @property
    def num_blocks_read(self) -> int:
        """See BlockIntake."""
        return min(each.num_blocks_read for each in self._all)

    @property
    def num_blocks_expected(self) -> int:
        """Blocks whose checksums are known; all ranks are told them at once."""
        return self._own.num_blocks_expected

    @property
    def num_blocks_announced(self) -> int:
        """Blocks that are here and whose checksums are known, though perhaps not compared everywhere."""
        return min(self.num_blocks_read, self.num_blocks_expected)

    @property
    def num_blocks_received(self) -> int:
        """See BlockIntake."""
        return min(each.num_blocks_received for each in self._all)

    @property
    def transfer_s(self) -> float:
        """Of the slowest rank."""
        return max(each.transfer_s for each in self._all)

    async def read(self, first_index: int, remote: Sequence[int]) -> None:
        """See BlockIntake."""
        await all_or_none(*(each.read(first_index, remote) for each in self._all))

    def expect(self, first_index: int, checksums: Sequence[int]) -> None:
        """See BlockIntake."""
        for each in self._all:
            each.expect(first_index, checksums)

    async def settled(self) -> None:
        """See BlockIntake."""
        await all_or_none(*(each.settled() for each in self._all))
