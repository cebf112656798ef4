"""Connections between the ranks of an epoch: its store, gloo on CPUs, NCCL between GPUs."""

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
from baton.engine.parallel.exchange import POLL_S, TeardownThreads
from baton.engine.parallel.group_view import GroupView, Membership

FORM_TIMEOUT_S = 10.0  # for all members of an epoch to reach its store
CONNECT_TIMEOUT_S = 5.0  # for the members to connect once all have reached the store
COLLECTIVE_TIMEOUT_S = 600.0  # longer than any step: a rank that hangs is ended earlier, which ends the wait
JOIN_POLL_S = 0.02
STORE_POLL_S = 0.002
ANY_PORT = 0

# torch's own watchdog ends the whole process when NCCL fails or times out. This disables it: the waiting call raises
# instead. Read when a group is created; set on import, before there are threads that read the environment.
os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")


class Collectives(Protocol):
    """Common interface of gloo's and NCCL's process groups."""

    def alltoall_base(
        self, output: Tensor, data: Tensor, received: list[int], sent: list[int], timeout: timedelta, /
    ) -> Work:
        """Send rows of `data` to each rank and receive rows of `output` from each."""
        ...

    def allreduce(self, tensors: list[Tensor], /) -> Work:
        """Replace every tensor by the sum over all ranks, added in an unspecified order."""
        ...

    def broadcast(self, tensor: Tensor, root: int, /) -> Work:
        """Replace the tensor by that of rank `root`."""
        ...

    def abort(self) -> None:
        """Abort collectives in flight, as far as possible."""
        ...


@dataclass(frozen=True, slots=True)
class Connections:
    """Store and process groups of one epoch."""

    store: Store
    control: Collectives
    data: Collectives

    def end(self) -> None:
        """Abort the process groups, so that the other ranks' collectives fail; waits for collectives in flight."""
        self.data.abort()
        self.control.abort()


class RankConnector:
    """Connects this rank to the other ranks of an epoch; all calls must come from one thread."""

    def __init__(self, membership: Membership, host: str, device: torch.device, teardown: TeardownThreads) -> None:
        """Create the connector. host: address of this rank's interface; teardown: receives abandoned threads."""
        self._membership = membership
        self._host = host
        self._device = device
        self._teardown = teardown

    def connect(self, view: GroupView, is_cancelled: Callable[[], bool]) -> Connections:
        """Connect on a thread that is abandoned at a newer epoch: the store's calls may block on a dead host.

        `is_cancelled` is polled. Raises GroupBroken if this epoch cannot be formed.
        """
        connecting: Future[Connections] = Future()

        def connect() -> None:
            try:
                connecting.set_result(self._connect(view))
            except Exception as error:  # raised in the waiting thread, unless this attempt was abandoned
                connecting.set_exception(error)

        thread = threading.Thread(target=connect, name="group-join", daemon=True)
        thread.start()
        while not connecting.done():
            futures.wait([connecting], JOIN_POLL_S)
            if not connecting.done() and (is_cancelled() or self._membership.epoch != view.epoch):
                self._teardown.add(thread)
                raise GroupBroken(f"epoch {view.epoch} of the group was abandoned")
        try:
            return connecting.result()
        except RuntimeError as error:
            raise GroupBroken(str(error)) from error

    def _connect(self, view: GroupView) -> Connections:
        store = self._open_store(view)
        self._wait_for_members(view, store)
        control = self._gloo(view, store)
        return Connections(store, control, self._nccl(view, store) if self._device.type == "cuda" else control)

    def _open_store(self, view: GroupView) -> Store:
        timeout = timedelta(seconds=FORM_TIMEOUT_S)
        if view.rank == 0:
            listener = socket.create_server((self._host, ANY_PORT))  # the store itself would bind all interfaces
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
        """Wait until rank 0 has opened the store, and return its address."""
        deadline_s = time.monotonic() + FORM_TIMEOUT_S
        found = view
        while not found.store:
            found = self._membership.wait(found, POLL_S) or found
            if found.epoch != view.epoch:
                raise GroupBroken(f"epoch {found.epoch} of the group has begun")
            if time.monotonic() > deadline_s:
                raise GroupBroken(f"{view.members[0]} did not open a store in {FORM_TIMEOUT_S:.0f} s")
        return found.store

    def _wait_for_members(self, view: GroupView, store: Store) -> None:
        """Wait until every member has reached the store. Raises GroupBroken at a newer epoch or on timeout."""
        store.set(f"here/{view.rank}", "1")
        everyone = [f"here/{rank}" for rank in range(len(view.members))]
        deadline_s = time.monotonic() + FORM_TIMEOUT_S
        while not store.check(everyone):
            if self._membership.epoch != view.epoch:
                raise GroupBroken(f"epoch {self._membership.epoch} of the group has begun")
            if time.monotonic() > deadline_s:
                raise GroupBroken(f"not every member connected in {FORM_TIMEOUT_S:.0f} s")
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
        from torch._C._distributed_c10d import ProcessGroupNCCL  # missing in a torch without CUDA

        options = ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
        prefixed = PrefixStore(f"nccl/{view.epoch}", store)
        group = ProcessGroupNCCL(prefixed, view.rank, len(view.members), options)
        # Connect now, while the attempt can be abandoned, and not in the first step; torch needs the device's index.
        group.eager_connect_single_device(torch.device("cuda", self._device.index or 0))
        return cast(Collectives, group)
