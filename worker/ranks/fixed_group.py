"""The ranks of one worker as a group: all are there from the start, in a fixed order, and without one it is over."""

from collections.abc import Callable

import torch

from baton.engine.errors import EngineEnded
from baton.engine.parallel.group_view import GroupView, NewestView
from baton.engine.parallel.tensor_parallel import TensorGroup
from baton.settings.worker_config import WorkerConfig

EPOCH = 1  # the only one


class FixedGroup:
    """A Membership of processes that one starts; the first rank's knows when the others can come."""

    def __init__(self, size: int, rank: int, on_store: Callable[[str], None] | None = None) -> None:
        """`on_store` hears, on the engine's thread, where the first rank's store is."""
        self._members = tuple(f"rank-{each}" for each in range(size))
        self._rank = rank
        self._on_store = on_store
        self._newest = NewestView()

    def begin(self, store: str = "") -> None:
        """All members can come; the store of the first one is at host:port, empty if this is the first."""
        self._newest.show(GroupView(EPOCH, self._members, self._rank, store))

    def lose(self) -> None:
        """A member is gone."""
        self._newest.show(GroupView(EPOCH + 1, self._members, self._rank))

    @property
    def epoch(self) -> int:
        """See Membership."""
        return self._newest.epoch

    def join(self) -> None:
        """See Membership."""

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        """See Membership. A group that has lost a member never forms again: there is no newer view."""
        view = self._newest.wait(seen, timeout_s)
        return view if view is not None and view.epoch == EPOCH else None

    def publish_store(self, epoch: int, address: str) -> None:
        """See Membership."""
        if self._on_store is not None:
            self._on_store(address)

    def report_broken(self, epoch: int, reason: str) -> None:
        """See Membership. Raises EngineEnded: there is no other group to form."""
        raise EngineEnded(f"the ranks of this worker cannot go on together: {reason}")

    def wake(self, epoch: int, round_number: int) -> None:
        """See Membership. Ranks that follow are never asleep."""


def tensor_group(config: WorkerConfig, membership: FixedGroup) -> TensorGroup:
    """The ranks of a worker, as its engine has them."""
    size, device = config.tensor_parallel, torch.device(config.engine.device)
    return TensorGroup(membership, config.host, device, size, has_whole_experts=config.expert_parallel > 1)
