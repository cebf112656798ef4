"""The ranks of one worker as a group: all present from the start, in a fixed order; the loss of one ends it."""

from collections.abc import Callable

import torch

from baton.engine.errors import EngineEnded
from baton.engine.parallel.group_view import GroupView, NewestView
from baton.engine.parallel.tensor_parallel import TensorGroup
from baton.worker.config import WorkerConfig

EPOCH = 1  # the only one


class FixedGroup:
    """The Membership of ranks that have connected to the first one."""

    def __init__(self, size: int, rank: int, on_store: Callable[[str], None] | None = None) -> None:
        """`on_store` is called on the engine's thread with the address of the first rank's store."""
        self._members = tuple(f"rank-{each}" for each in range(size))
        self._rank = rank
        self._on_store = on_store
        self._newest = NewestView()

    def begin(self, store: str = "") -> None:
        """Publish the view in which all members join. store: host:port of the first rank's; empty on the first rank."""
        self._newest.show(GroupView(EPOCH, self._members, self._rank, store))

    def lose(self) -> None:
        """End the group after the loss of a member."""
        self._newest.show(GroupView(EPOCH + 1, self._members, self._rank))

    @property
    def epoch(self) -> int:
        """Epoch of the newest view; see Membership."""
        return self._newest.epoch

    def join(self, fingerprint: str) -> None:
        """Do nothing: a rank is a member from the start."""

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        """Wait for a view newer than `seen`; see Membership. After the loss of a member there is none."""
        view = self._newest.wait(seen, timeout_s)
        return view if view is not None and view.epoch == EPOCH else None

    def publish_store(self, epoch: int, address: str) -> None:
        """Pass the store's address to `on_store`."""
        if self._on_store is not None:
            self._on_store(address)

    def report_broken(self, epoch: int, reason: str) -> None:
        """Raise EngineEnded: the group cannot form again."""
        raise EngineEnded(f"the ranks of this worker cannot continue: {reason}")

    def wake(self, epoch: int, round_number: int) -> None:
        """Do nothing: follower ranks never sleep."""


def tensor_group(config: WorkerConfig, membership: FixedGroup) -> TensorGroup:
    """Return the tensor-parallel group for a worker's engine."""
    size, device = config.tensor_parallel, torch.device(config.engine.device)
    has_whole_experts = config.expert_parallel > 1
    return TensorGroup(membership, config.host, device, size, has_whole_experts, config.ranks_per_node)
