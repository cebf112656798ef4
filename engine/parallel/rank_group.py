"""The ranks of a group, and how bytes get from each to each."""

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
from torch import Tensor
from torch._C._distributed_c10d import Store, Work

from baton.engine.errors import EngineEnded, GroupBroken
from baton.engine.parallel.exchange import POLL_S, EndingThreads, Exchange
from baton.engine.parallel.group_view import GroupView, Membership
from baton.engine.parallel.rank_connections import COLLECTIVE_TIMEOUT_S, Collectives, Connections, RankConnector

logger = logging.getLogger(__name__)

IN_A_STEP = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
NEVER = timedelta(days=365)  # the time-out of a wait that other means end: a newer epoch, or a lost connection
CLOSE_TIMEOUT_S = 2.0


class RankGroup:
    """Owns the process group of the newest epoch; one thread calls everything."""

    def __init__(self, membership: Membership, host: str, device: torch.device, fewest: int = 1) -> None:
        """host: the address of this rank's interface, on which the others reach it; fewest: ranks of an epoch that is
        joined.
        """
        self._membership = membership
        self._fewest = fewest
        self._ending = EndingThreads()
        self._connector = RankConnector(membership, host, device, self._ending)
        self._view: GroupView | None = None
        self._last_epoch = 0  # that was joined, or could not be
        self._connections: Connections | None = None  # of a single rank there are none
        self._given_up: list[Work] = []  # whose memory a GPU may still write, until their group has ended
        self._has_left = False
        self.is_waiting = False  # for other ranks
        self.is_forming = False  # an epoch, and reading what it lacks
        self.is_short = False  # of ranks, and waits for more
        self.num_sent_bytes = 0  # to other ranks, since the start
        self.waited_s = 0.0  # for exchanges, since the start
        self.num_tokens: list[int] = []  # of each rank in the present step, as all have agreed

    @property
    def view(self) -> GroupView:
        """The epoch of the present process group."""
        assert self._view is not None, "the group was not formed"
        return self._view

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.view.members)

    @property
    def is_formed(self) -> bool:
        """Whether there is a process group, though perhaps not the newest epoch's."""
        return self._view is not None

    @property
    def has_left(self) -> bool:
        """Whether this rank takes part in nothing any more."""
        return self._has_left

    @property
    def is_current(self) -> bool:
        """Whether the group stands, and no newer epoch has begun."""
        return self._view is not None and self._view.epoch == self._membership.epoch

    @property
    def store(self) -> Store:
        """A key-value store that all ranks of the epoch have; of a group of several."""
        return self._connected.store

    def check_epoch(self) -> None:
        """Raises GroupBroken if a newer epoch has begun, or this rank has left."""
        if self._has_left:
            raise GroupBroken("this rank has left its group")
        if not self.is_current:
            raise GroupBroken(f"epoch {self._membership.epoch} of the group has begun")

    def give_up(self, work: Work) -> None:
        """See WaitingRank."""
        self._given_up.append(work)

    def form(self) -> None:
        """Joins the process group of the newest epoch after the last one, however many come and go meanwhile.

        Raises EngineEnded if this rank has left for good.
        """
        self._membership.join()
        seen: GroupView | None = None
        while not self._has_left:
            view = self._membership.wait(seen, POLL_S)
            seen = view or seen
            if view is None or view.epoch <= self._last_epoch:
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

        raise EngineEnded("this rank has left its group")

    def _lacks_ranks(self, view: GroupView) -> bool:
        """Whether an epoch has too few of them; the same on all ranks."""
        is_short = len(view.members) < self._fewest
        if is_short:
            logger.warning(
                "epoch %d of the group has %d of the %d ranks that it needs: nothing is computed until more come",
                view.epoch,
                len(view.members),
                self._fewest,
            )
        self.is_short = is_short
        return is_short

    def leave(self) -> None:
        """No epoch is joined from now on. May be called on any thread."""
        self._has_left = True

    def drop(self, and_then: Callable[[], None] | None = None) -> None:
        """Leaves the process group, which tells the others' collectives that we are gone. Never waits.

        and_then: called on another thread once nothing of the group is under way, if there was one.
        """
        self._view = None
        if self._connections is None:
            return
        kept, given_up = [self._connections], self._given_up
        self._connections, self._given_up = None, []

        def end() -> None:
            kept[0].end()
            kept.clear()
            given_up.clear()
            if and_then is not None:
                and_then()

        # Its end waits for collectives under way, and those with a rank that hangs end late.
        self._ending.start(end)

    def close(self) -> None:
        """The same, before the process ends: gives what is dropped a little time, for its threads die badly."""
        self.drop()
        self.wait_for_dropped(CLOSE_TIMEOUT_S)

    def wait_for_dropped(self, timeout_s: float) -> None:
        """Gives what was dropped so much time to end."""
        self._ending.join(timeout_s)

    def exchange(self, output: Tensor, data: Tensor, received: Sequence[int], sent: Sequence[int]) -> Exchange:
        """Begins to send rows of `data` to each rank and to receive rows of `output`, both in order of ranks.

        Rows are bytes or integers along dimension 0; `received` and `sent` count them by rank. Raises GroupBroken.
        """
        if self.size == 1:
            output.copy_(data)
            return Exchange(None, self)
        return self._begin(self._connected.data, output, data, received, sent)

    def add(self, x: Tensor) -> Exchange:
        """Begins to make of x, in place, the sum of all ranks': with over two of them in no certain order.

        Raises GroupBroken.
        """
        if self.size == 1:
            return Exchange(None, self)
        try:
            return Exchange(self._connected.data.allreduce([x]), self, is_on_gpu=x.is_cuda)
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {error}") from error

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """Every rank's numbers, equally many on all, by rank. Raises GroupBroken."""
        return self._gather(torch.tensor(numbers, dtype=torch.int64)).tolist()

    def gather_tensor(self, numbers: Tensor) -> Tensor:
        """Every rank's numbers [n], equally many on all: [size, n] on the CPU. Raises GroupBroken."""
        return self._gather(numbers.to("cpu").flatten())

    def meet(self) -> None:
        """Waits until every rank has come here, however long that takes. Raises GroupBroken."""
        self._gather(torch.zeros(1, dtype=torch.int64), NEVER)

    def tell(self, numbers: Tensor) -> None:
        """The first rank's numbers [n], on the CPU, to all others, which `listen`. Raises GroupBroken."""
        self._from_first(numbers.new_empty(0), numbers.repeat(self.size - 1), [0] * self.size, len(numbers))

    def listen(self, count: int) -> Tensor:
        """So many numbers (int64, on the CPU) of the first rank, however late it tells them. Raises GroupBroken."""
        output = torch.empty(count, dtype=torch.int64)
        self._from_first(output, output[:0], [count] + [0] * (self.size - 1), 0)
        return output

    def _from_first(self, output: Tensor, data: Tensor, received: list[int], num_sent: int) -> None:
        if self.size > 1:
            sent = [0] + [num_sent] * (self.size - 1)
            self._begin(self._connected.control, output, data, received, sent, NEVER).wait()

    def _gather(self, numbers: Tensor, timeout: timedelta = IN_A_STEP) -> Tensor:
        if self.size == 1:
            return numbers.unsqueeze(0)
        everywhere = numbers.repeat(self.size)  # gloo's all_to_all is three times as fast as its all_gather
        output = torch.empty_like(everywhere)
        splits = [len(numbers)] * self.size
        self._begin(self._connected.control, output, everywhere, splits, splits, timeout).wait()
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
        """Raises GroupBroken if this epoch cannot be formed."""
        if len(view.members) > 1:
            self._connections = self._connector.connect(view, lambda: self._has_left)
        self._view = view
        logger.info("epoch %d of the group: rank %d of %d", view.epoch, view.rank, len(view.members))

    @property
    def _connected(self) -> Connections:
        """Of a group of several ranks."""
        assert self._connections is not None, "the group was not formed"
        return self._connections
