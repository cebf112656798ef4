"""The ranks of a group and how bytes get from each to each, over gloo on CPUs and NCCL on GPUs."""

import logging
import socket
import threading
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

from engine.errors import EngineEnded, GroupBroken
from engine.group_view import GroupView, Membership

logger = logging.getLogger(__name__)

FORM_TIMEOUT_S = 10.0  # for the members of an epoch to come to its store
CONNECT_TIMEOUT_S = 5.0  # for them to connect once all have come
COLLECTIVE_TIMEOUT_S = 600.0  # longer than any step: whoever hangs is ended before, and that ends the wait
POLL_S = 0.2  # how soon a wait notices a newer epoch
IN_A_STEP = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
NEVER = timedelta(days=365)  # the time-out of a wait that other means end: a newer epoch, or a lost connection
CLOSE_TIMEOUT_S = 2.0
JOIN_POLL_S = 0.02
STORE_POLL_S = 0.002
ANY_PORT = 0


class Collectives(Protocol):
    """What gloo's and NCCL's process groups have in common."""

    def alltoall_base(
        self, output: Tensor, data: Tensor, received: list[int], sent: list[int], timeout: timedelta, /
    ) -> Work:
        """Rows of `data` to each rank, rows of `output` from each."""
        ...

    def allreduce(self, tensors: list[Tensor], /) -> Work:
        """Every tensor becomes the sum of all ranks', in no certain order."""
        ...

    def abort(self) -> None:
        """Ends what is under way, as far as it can."""
        ...


@dataclass(frozen=True, slots=True)
class Connections:
    """What an epoch's ranks are connected by."""

    store: Store
    control: Collectives
    data: Collectives


class Exchange:
    """A collective under way."""

    def __init__(self, work: Work | None, group: "RankGroup") -> None:
        """work: None if there was nobody to exchange with."""
        self._work = work
        self._group = group

    def wait(self) -> None:
        """Returns when it is done. Raises GroupBroken if a rank is gone or a newer epoch has begun."""
        if self._work is None:
            return
        group, began_s = self._group, time.monotonic()
        group.is_waiting = True
        try:
            self._poll(self._work)
        finally:
            group.is_waiting = False
            group.waited_s += time.monotonic() - began_s

    def _poll(self, work: Work) -> None:
        while True:
            has_ended = work.is_completed()
            try:
                work.wait(timedelta(seconds=POLL_S))
                return
            except RuntimeError as error:
                if has_ended:
                    raise GroupBroken(f"a collective failed: {error}") from error
                if work.is_completed():
                    continue  # it ended just as the time was over: the next wait says how
                self._group.check_epoch()  # it timed out, and whom it waits for may be gone for good


class RankGroup:
    """Owns the process group of the newest epoch; one thread calls everything."""

    def __init__(self, membership: Membership, host: str, device: torch.device) -> None:
        """host: the address of this rank's interface, on which the others reach it."""
        self._membership = membership
        self._host = host
        self._device = device
        self._view: GroupView | None = None
        self._last_epoch = 0  # that was joined, or could not be
        self._store: Store | None = None
        self._control: Collectives | None = None
        self._data: Collectives | None = None
        self._ending: list[threading.Thread] = []  # of process groups that were dropped
        self._has_left = False
        self.is_waiting = False  # for other ranks
        self.is_forming = False  # an epoch, and reading what it lacks
        self.num_rows = 0  # of all ranks' tokens that were computed by experts here, since the start
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

    def check_epoch(self) -> None:
        """Raises GroupBroken if a newer epoch has begun, or this rank has left."""
        if self._has_left:
            raise GroupBroken("this rank has left its group")
        if not self.is_current:
            raise GroupBroken(f"epoch {self._membership.epoch} of the group has begun")

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
            try:
                self._join(view)
                return
            except GroupBroken as error:
                logger.warning("epoch %d of the group did not form: %s", view.epoch, error)
                self.drop()
                self._membership.report_broken(view.epoch, str(error))

        raise EngineEnded("this rank has left its group")

    def leave(self) -> None:
        """No epoch is joined from now on. May be called on any thread."""
        self._has_left = True

    def drop(self) -> None:
        """Leaves the process group, which tells the others' collectives that we are gone. Never waits."""
        ended = [each for each in (self._data, self._control) if each is not None]
        kept: list[object] = [*ended, self._store]
        self._view = self._data = self._control = self._store = None

        def end() -> None:
            for each in ended:
                each.abort()
            ended.clear()
            kept.clear()

        # Its end waits for collectives under way, and those with a rank that hangs end late.
        self._ending = [each for each in self._ending if each.is_alive()]
        self._ending.append(threading.Thread(target=end, name="group-end", daemon=True))
        self._ending[-1].start()

    def close(self) -> None:
        """The same, before the process ends: gives what is dropped a little time, for its threads die badly."""
        self.drop()
        deadline_s = time.monotonic() + CLOSE_TIMEOUT_S
        for each in self._ending:
            each.join(max(deadline_s - time.monotonic(), 0))

    def exchange(self, output: Tensor, data: Tensor, received: Sequence[int], sent: Sequence[int]) -> Exchange:
        """Begins to send rows of `data` to each rank and to receive rows of `output`, both in order of ranks.

        Rows are bytes or integers along dimension 0; `received` and `sent` count them by rank. Raises GroupBroken.
        """
        if self.size == 1:
            output.copy_(data)
            return Exchange(None, self)
        assert self._data is not None
        return self._begin(self._data, output, data, received, sent)

    def add(self, x: Tensor) -> Exchange:
        """Begins to make of x, in place, the sum of all ranks': with over two of them in no certain order.

        Raises GroupBroken.
        """
        if self.size == 1:
            return Exchange(None, self)
        assert self._data is not None
        try:
            return Exchange(self._data.allreduce([x]), self)
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
            assert self._control is not None
            sent = [0] + [num_sent] * (self.size - 1)
            self._begin(self._control, output, data, received, sent, NEVER).wait()

    def _gather(self, numbers: Tensor, timeout: timedelta = IN_A_STEP) -> Tensor:
        if self.size == 1:
            return numbers.unsqueeze(0)
        assert self._control is not None
        everywhere = numbers.repeat(self.size)  # gloo's all_to_all is three times as fast as its all_gather
        output = torch.empty_like(everywhere)
        splits = [len(numbers)] * self.size
        self._begin(self._control, output, everywhere, splits, splits, timeout).wait()
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
            return Exchange(group.alltoall_base(output, data, list(received), list(sent), timeout), self)
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {error}") from error

    def _join(self, view: GroupView) -> None:
        """Raises GroupBroken if this epoch cannot be formed."""
        if len(view.members) > 1:
            connections = self._connected(view)
            self._store, self._control, self._data = connections.store, connections.control, connections.data
        self._view = view
        logger.info("epoch %d of the group: rank %d of %d", view.epoch, view.rank, len(view.members))

    def _connected(self, view: GroupView) -> "Connections":
        """Connects on a thread that is given up at a newer epoch: a store's calls may wait for a dead host for long."""
        connecting: Future[Connections] = Future()

        def connect() -> None:
            try:
                connecting.set_result(self._connect(view))
            except Exception as error:  # handed to who waits, if anybody does
                connecting.set_exception(error)

        thread = threading.Thread(target=connect, name="group-join", daemon=True)
        thread.start()
        while not connecting.done():
            futures.wait([connecting], JOIN_POLL_S)
            if not connecting.done() and (self._has_left or self._membership.epoch != view.epoch):
                self._ending.append(thread)
                raise GroupBroken(f"epoch {view.epoch} of the group was given up")
        try:
            return connecting.result()
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def _connect(self, view: GroupView) -> "Connections":
        store = self._open_store(view)
        self._meet(view, store)
        control = self._gloo(view, store)
        return Connections(store, control, self._nccl(view, store) if self._device.type == "cuda" else control)

    def _open_store(self, view: GroupView) -> Store:
        timeout = timedelta(seconds=FORM_TIMEOUT_S)
        if view.rank == 0:
            listener = socket.create_server((self._host, ANY_PORT))  # the store's own would listen everywhere
            port = listener.getsockname()[1]
            store = TCPStore(
                self._host,
                port,
                None,
                is_master=True,
                timeout=timeout,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
            self._membership.publish_store(view.epoch, f"{self._host}:{port}")
            return store
        deadline_s = time.monotonic() + FORM_TIMEOUT_S
        found = view
        while not found.store:
            found = self._membership.wait(found, POLL_S) or found
            if found.epoch != view.epoch:
                raise GroupBroken(f"epoch {found.epoch} of the group has begun")
            if time.monotonic() > deadline_s:
                raise GroupBroken(f"{view.members[0]} did not open a store in {FORM_TIMEOUT_S:.0f} s")
        host, _, port = found.store.rpartition(":")
        return TCPStore(host.strip("[]"), int(port), None, is_master=False, timeout=timeout)

    def _meet(self, view: GroupView, store: Store) -> None:
        """Waits until every member has come: some may have gone on to a newer epoch, and then nobody waits for them."""
        store.set(f"here/{view.rank}", "1")
        everyone = [f"here/{rank}" for rank in range(len(view.members))]
        deadline_s = time.monotonic() + FORM_TIMEOUT_S
        while not store.check(everyone):
            if self._membership.epoch != view.epoch:
                raise GroupBroken(f"epoch {self._membership.epoch} of the group has begun")
            if time.monotonic() > deadline_s:
                raise GroupBroken(f"not every member came in {FORM_TIMEOUT_S:.0f} s")
            time.sleep(STORE_POLL_S)

    def _gloo(self, view: GroupView, store: Store) -> Collectives:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stubs call it Options
        options._devices = [ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = timedelta(seconds=CONNECT_TIMEOUT_S)
        prefixed = PrefixStore(f"gloo/{view.epoch}", store)
        group = ProcessGroupGloo(prefixed, view.rank, len(view.members), options)
        group._set_default_timeout(timedelta(seconds=COLLECTIVE_TIMEOUT_S))
        return cast(Collectives, group)

    def _nccl(self, view: GroupView, store: Store) -> Collectives:
        from torch._C._distributed_c10d import ProcessGroupNCCL  # not in a torch without CUDA

        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
        prefixed = PrefixStore(f"nccl/{view.epoch}", store)
        return cast(Collectives, ProcessGroupNCCL(prefixed, view.rank, len(view.members), options))
