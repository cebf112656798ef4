"""A group of ranks and its collectives."""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store, Work

from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.parallel.exchange import POLL_S, Exchange, TeardownThreads
from baton.engine.parallel.group_view import GroupView, Membership
from baton.engine.parallel.rank_connections import COLLECTIVE_TIMEOUT_S, Collectives, Connections, RankConnector

logger = logging.getLogger(__name__)

IN_A_STEP = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
NEVER = timedelta(days=365)  # timeout of waits that end by other means: a newer epoch, or a lost connection
CLOSE_TIMEOUT_S = 2.0
NO_EPOCH_S = 5.0  # wait for a newer epoch after which the group counts as short of ranks; usually it takes 1 s or less


class RankGroup:
    """Process group of the newest epoch. Not thread-safe, except where noted."""

    def __init__(self, membership: Membership, host: str, device: torch.device, fewest: int = 1) -> None:
        """Create the group without forming it.

        host: address of this rank's interface, where the other ranks reach it; fewest: smallest number of ranks of an
        epoch to join.
        """
        self._membership = membership
        self._fewest = fewest
        self._teardown = TeardownThreads()
        self._connector = RankConnector(membership, host, device, self._teardown)
        self._view: GroupView | None = None
        self._last_epoch = 0  # last epoch that was joined or failed to form
        self._connections: Connections | None = None  # None for a single rank
        self._abandoned: list[Work] = []  # abandoned collectives, whose memory a GPU may write until their group ends
        self._has_left = False
        self.is_waiting = False  # waits for other ranks in a collective
        self.is_forming = False  # forms an epoch and reads missing experts
        self.is_short = False  # has too few ranks and waits for more, or for an epoch without those that are lost
        self.resumed_s = 0.0  # monotonic time at which it last ended such a wait, or had formed an epoch
        self.num_sent_bytes = 0  # to other ranks, since start
        self.waited_s = 0.0  # in collectives, since start
        self.num_tokens: list[int] = []  # by rank: tokens in the current step, as agreed

    @property
    def view(self) -> GroupView:
        """View of the current process group's epoch."""
        assert self._view is not None, "the group was not formed"
        return self._view

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.view.members)

    @property
    def num_tokens_elsewhere(self) -> int:
        """Tokens of the other ranks in the step that was agreed on last."""
        has_stepped = self._view is not None and len(self.num_tokens) == self.size
        return sum(self.num_tokens) - self.num_tokens[self.view.rank] if has_stepped else 0

    @property
    def is_formed(self) -> bool:
        """Whether there is a process group, perhaps of an older epoch."""
        return self._view is not None

    @property
    def has_left(self) -> bool:
        """Whether this rank has left for good."""
        return self._has_left

    @property
    def is_current(self) -> bool:
        """Whether the group has formed and no newer epoch has begun."""
        return self._view is not None and self._view.epoch == self._membership.epoch

    @property
    def store(self) -> Store:
        """Key-value store shared by all ranks of the epoch; only for groups of several ranks."""
        return self._connected.store

    def check_epoch(self) -> None:
        """Raise GroupBroken if a newer epoch has begun, or this rank has left."""
        if self._has_left:
            raise GroupBroken("this rank has left its group")
        if not self.is_current:
            raise GroupBroken(f"epoch {self._membership.epoch} of the group has begun")

    def abandon(self, work: Work) -> None:
        """Keep an abandoned collective's memory alive until its group has ended."""
        self._abandoned.append(work)

    def form(self) -> None:
        """Join the process group of a newer epoch, retrying with later epochs until one forms.

        Raises EngineEnded if this rank has left for good.
        """
        seen: GroupView | None = None
        began_s = time.monotonic()
        while not self._has_left:
            view = self._membership.wait(seen, POLL_S)
            seen = view or seen
            if view is None or view.epoch <= self._last_epoch:
                self._note_wait(began_s)
                continue
            self._last_epoch = view.epoch
            if self._lacks_ranks(view):
                continue
            try:
                self._join(view)
                return
            except GroupBroken as error:
                logger.warning("epoch %d of the group did not form: %s", view.epoch, error)
                self.drop()
                self._membership.report_broken(view.epoch, str(error))
                began_s = time.monotonic()

        raise EngineEnded("this rank has left its group")

    def _lacks_ranks(self, view: GroupView) -> bool:
        """Return whether an epoch has too few ranks; the same on all ranks."""
        is_short = len(view.members) < self._fewest
        if is_short:
            logger.warning(
                "epoch %d of the group has %d of the %d ranks that it needs: nothing is computed until more join",
                view.epoch,
                len(view.members),
                self._fewest,
            )
        elif self.is_short:
            self.resumed_s = time.monotonic()
        self.is_short = is_short
        return is_short

    def _note_wait(self, began_s: float) -> None:
        """Mark the group as short of ranks if it has waited for a newer epoch for too long, except at its start."""
        if self.is_short or not self._last_epoch or time.monotonic() - began_s < NO_EPOCH_S:
            return
        logger.warning(
            "epoch %d of the group has ended, and no newer one has begun in %.0f s: nothing is computed until the "
            "rendezvous begins one",
            self._last_epoch,
            NO_EPOCH_S,
        )
        self.is_short = True

    def leave(self) -> None:
        """Join no further epoch. May be called on any thread."""
        self._has_left = True

    def drop(self, and_then: Callable[[], None] | None = None) -> None:
        """Leave the process group, so that the other ranks' collectives fail. Never blocks.

        and_then: called on another thread once nothing of the group is in flight; not called if there was no group.
        """
        self._view = None
        if self._connections is None:
            return
        kept, given_up = [self._connections], self._abandoned
        self._connections, self._abandoned = None, []

        def end() -> None:
            kept[0].end()
            kept.clear()
            given_up.clear()
            if and_then is not None:
                and_then()

        # On another thread: ending waits for collectives in flight, which end late if a rank hangs.
        self._teardown.start(end)

    def close(self) -> None:
        """Leave the process group before the process ends, and give its threads a little time to end cleanly."""
        self.drop()
        self.wait_for_dropped(CLOSE_TIMEOUT_S)

    def wait_for_dropped(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` seconds until dropped process groups have ended."""
        self._teardown.join(timeout_s)

    def exchange(self, output: Tensor, data: Tensor, received: Sequence[int], sent: Sequence[int]) -> Exchange:
        """Start an all-to-all: send rows of `data` to each rank and receive rows of `output`, both in rank order.

        Rows are bytes or integers along dimension 0; `received` and `sent` count them by rank. Raises GroupBroken.
        """
        if self.size == 1:
            output.copy_(data)
            return Exchange(None, self)
        return self._begin(self._connected.data, output, data, received, sent)

    def add(self, x: Tensor) -> Exchange:
        """Start an in-place all-reduce of x; with more than two ranks, the order of addition is unspecified.

        Raises GroupBroken.
        """
        if self.size == 1:
            return Exchange(None, self)
        try:
            return Exchange(self._connected.data.allreduce([x]), self, is_on_gpu=x.is_cuda)
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {error}") from error

    def copy_from_rank0(self, x: Tensor) -> Exchange:
        """Start to replace x, bytes on the model's device, by rank 0's. Raises GroupBroken."""
        try:
            return Exchange(self._connected.data.broadcast(x, 0), self, is_on_gpu=x.is_cuda)
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {error}") from error

    def gather(self, numbers: Sequence[int], on_delay: Callable[[], None] | None = None) -> list[list[int]]:
        """Return every rank's numbers, equally many on all, by rank. Raises GroupBroken.

        on_delay: called once if a rank's numbers are missing after `POLL_S`.
        """
        return self._gather(torch.tensor(numbers, dtype=torch.int64), on_delay=on_delay).tolist()

    def gather_tensor(self, numbers: Tensor) -> Tensor:
        """Return every rank's numbers [n], equally many on all, as [size, n] on the CPU. Raises GroupBroken."""
        return self._gather(numbers.to("cpu").flatten())

    def barrier(self) -> None:
        """Wait until every rank has reached this barrier, without a timeout. Raises GroupBroken."""
        self._gather(torch.zeros(1, dtype=torch.int64), NEVER)

    def broadcast(self, numbers: Tensor) -> None:
        """Send rank 0's numbers [n], on the CPU, to the other ranks, which call `receive_broadcast`.

        Raises GroupBroken.
        """
        self._from_rank0(numbers.new_empty(0), numbers.repeat(self.size - 1), [0] * self.size, len(numbers))

    def receive_broadcast(self, count: int) -> Tensor:
        """Wait, without a timeout, for `count` numbers (int64, on the CPU) from rank 0. Raises GroupBroken."""
        output = torch.empty(count, dtype=torch.int64)
        self._from_rank0(output, output[:0], [count] + [0] * (self.size - 1), 0)
        return output

    def _from_rank0(self, output: Tensor, data: Tensor, received: list[int], num_sent: int) -> None:
        if self.size > 1:
            sent = [0] + [num_sent] * (self.size - 1)
            self._begin(self._connected.control, output, data, received, sent, NEVER).wait()

    def _gather(
        self, numbers: Tensor, timeout: timedelta = IN_A_STEP, on_delay: Callable[[], None] | None = None
    ) -> Tensor:
        if self.size == 1:
            return numbers.unsqueeze(0)
        copies = numbers.repeat(self.size)  # gloo's all_to_all is three times as fast as its all_gather
        output = torch.empty_like(copies)
        splits = [len(numbers)] * self.size
        self._begin(self._connected.control, output, copies, splits, splits, timeout).wait(on_delay)
        return output.view(self.size, -1)

    def _begin(
        self,
        group: Collectives,
        output: Tensor,
        data: Tensor,
        received: Sequence[int],
        sent: Sequence[int],
        timeout: timedelta = IN_A_STEP,
    ) -> Exchange:
        row_bytes = data.numel() * data.itemsize // len(data) if len(data) else 0
        self.num_sent_bytes += (sum(sent) - sent[self.view.rank]) * row_bytes
        try:
            work = group.alltoall_base(output, data, list(received), list(sent), timeout)
            return Exchange(work, self, is_on_gpu=data.is_cuda)
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {error}") from error

    def _join(self, view: GroupView) -> None:
        """Connect to the ranks of an epoch. Raises GroupBroken if it cannot be formed."""
        if len(view.members) > 1:
            self._connections = self._connector.connect(view, lambda: self._has_left)
        self._view = view
        logger.info("epoch %d of the group: rank %d of %d", view.epoch, view.rank, len(view.members))

    @property
    def _connected(self) -> Connections:
        """Connections of a group of several ranks."""
        assert self._connections is not None, "the group was not formed"
        return self._connections
