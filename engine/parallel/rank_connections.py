"""How the ranks of an epoch are connected: its store, gloo on CPUs, NCCL between GPUs."""

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore, Work

from baton.engine.errors import GroupBroken
from baton.engine.parallel.exchange import POLL_S, EndingThreads
from baton.engine.parallel.group_view import GroupView, Membership

FORM_TIMEOUT_S = 10.0  # for the members of an epoch to come to its store
CONNECT_TIMEOUT_S = 5.0  # for them to connect once all have come
COLLECTIVE_TIMEOUT_S = 600.0  # longer than any step: whoever hangs is ended before, and that ends the wait
JOIN_POLL_S = 0.02
STORE_POLL_S = 0.002
ANY_PORT = 0

# Torch's own watchdog ends the whole process when NCCL fails or is late. With this there is none: whoever waits sees
# the failure. Read when a group is made; set here, before threads that look at the environment.
os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")


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

    def end(self) -> None:
        """Tells the others' collectives that we are gone; waits for those that are under way."""
        self.data.abort()
        self.control.abort()


class RankConnector:
    """Connects this rank to the others of an epoch; one thread calls everything."""

    def __init__(self, membership: Membership, host: str, device: torch.device, ending: EndingThreads) -> None:
        """host: the address of this rank's interface; ending: takes the thread of an attempt that is given up."""
        self._membership = membership
        self._host = host
        self._device = device
        self._ending = ending

    def connect(self, view: GroupView, is_given_up: Callable[[], bool]) -> Connections:
        """Connects on a thread that is given up at a newer epoch: a store's calls may wait for a dead host for long.

        `is_given_up` is asked every now and then. Raises GroupBroken if this epoch cannot be formed.
        """
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
            if not connecting.done() and (is_given_up() or self._membership.epoch != view.epoch):
                self._ending.add(thread)
                raise GroupBroken(f"epoch {view.epoch} of the group was given up")
        try:
            return connecting.result()
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def _connect(self, view: GroupView) -> Connections:
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
        host, _, port_text = self._address_of_store(view).rpartition(":")
        return TCPStore(host.strip("[]"), int(port_text), None, is_master=False, timeout=timeout)

    def _address_of_store(self, view: GroupView) -> str:
        """As soon as the first member has opened it."""
        deadline_s = time.monotonic() + FORM_TIMEOUT_S
        found = view
        while not found.store:
            found = self._membership.wait(found, POLL_S) or found
            if found.epoch != view.epoch:
                raise GroupBroken(f"epoch {found.epoch} of the group has begun")
            if time.monotonic() > deadline_s:
                raise GroupBroken(f"{view.members[0]} did not open a store in {FORM_TIMEOUT_S:.0f} s")
        return found.store

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
        group = ProcessGroupNCCL(prefixed, view.rank, len(view.members), options)
        # Here, where it can be given up, and not within the first step; torch knows it by the number of its device.
        group.eager_connect_single_device(torch.device("cuda", self._device.index or 0))
        return cast(Collectives, group)
