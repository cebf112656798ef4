"""The communicator of two processes, of which one sends: NCCL between GPUs, gloo between CPUs."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore

from kvtransfer.cuda_streams import side_stream, wait_for
from kvtransfer.errors import PeerLost, TransportUnavailable
from kvtransfer.threads import run_in_thread

OWNER, READER = 0, 1
TAG = 0

# Torch's own watchdog ends the whole process when NCCL fails or is late. With this there is none: whoever waits sees
# the failure. Read when a group is made; set here, before threads that look at the environment.
os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")


def own_store(host: str, timeout_s: float) -> tuple[Store, int]:
    """A store for one group, at `host` alone, and its port."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port: int = listener.getsockname()[1]
    timeout = timedelta(seconds=timeout_s)
    store = TCPStore(
        host, port, None, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def peers_store(host: str, port: int, timeout_s: float) -> Store:
    """The store that a peer has opened; blocks."""
    return TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=timeout_s))


class PairGroup:
    """Owns one side's process group; every call blocks, and but for `abort` one thread at a time makes them.

    What is sent and what comes lies beside the pool, so that an aborted communicator has no block of it.
    """

    def __init__(self, store: Store, rank: int, host: str, device: torch.device, timeout_s: float) -> None:
        """Connects. `timeout_s`: for that, and for each chunk from when it is waited for.

        Raises RuntimeError if the other side does not come.
        """
        self._store = store  # of the owner: it is served for as long as the group is there
        self._device = device
        self._other = 1 - rank
        self._stream = side_stream(device) if device.type == "cuda" else None
        make = _nccl if device.type == "cuda" else _gloo
        self._group: Any = make(store, rank, host, device, timedelta(seconds=timeout_s))

    def send(self, rows: Tensor, units: Sequence[int]) -> None:
        """Sends rows of a pool, together. Raises PeerLost."""
        with torch.cuda.stream(self._stream):  # None: does nothing
            chunk = rows.index_select(0, self._index(units))
            self._wait(lambda group: group.send([chunk], self._other, TAG))

    def receive(self, num_units: int, unit_bytes: int) -> Tensor:
        """So many rows that the other side sends together, in memory of their own. Raises PeerLost."""
        with torch.cuda.stream(self._stream):
            chunk = torch.empty(num_units, unit_bytes, dtype=torch.uint8, device=self._device)
            self._wait(lambda group: group.recv([chunk], self._other, TAG))
        return chunk

    def scatter(self, chunk: Tensor, rows: Tensor, units: Sequence[int]) -> None:
        """Copies what has come into rows of a pool."""
        with torch.cuda.stream(self._stream):
            rows.index_copy_(0, self._index(units), chunk)
        if self._stream is not None:
            wait_for(self._stream)

    def abort(self) -> None:
        """Ends what is under way: at once with NCCL; with gloo when the other side ends, or when it has taken too long.

        From any thread; idempotent.
        """
        group, self._group = self._group, None
        if group is not None:
            group.abort()

    def _index(self, units: Sequence[int]) -> Tensor:
        return torch.tensor(units, dtype=torch.int64, device=self._device)

    def _wait(self, start: Callable[[Any], Any]) -> None:
        group = self._group
        if group is None:
            raise PeerLost("the communicator was aborted")
        try:
            start(group).wait()
            if self._stream is not None:
                wait_for(self._stream)
        except RuntimeError as error:
            raise PeerLost(f"the communicator is broken: {str(error).splitlines()[0]}") from error
        if self._group is None:
            raise PeerLost("the communicator was aborted")


async def made(make: Callable[[], PairGroup]) -> PairGroup:
    """Makes a group on a thread; if nobody waits any more it is aborted when it is made, however long that takes."""
    making = run_in_thread("baton-kv-pair", make)
    try:
        await asyncio.wait({making})
        return making.result()
    except asyncio.CancelledError:
        making.add_done_callback(_abort)
        raise
    finally:
        del making  # its error knows this frame; see `threads`


def _abort(making: "asyncio.Future[PairGroup]") -> None:
    if making.exception() is None:
        run_in_thread("baton-kv-pair-end", making.result().abort)


def _gloo(store: Store, rank: int, host: str, device: torch.device, timeout: timedelta) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stubs call it Options
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timeout
    options._threads = 1
    return ProcessGroupGloo(PrefixStore("gloo", store), rank, 2, options)


def _nccl(store: Store, rank: int, host: str, device: torch.device, timeout: timedelta) -> Any:
    nccl = nccl_type()
    options = nccl.Options()
    options._timeout = timeout
    group = nccl(PrefixStore("nccl", store), rank, 2, options)
    torch.cuda.set_device(device)
    group.eager_connect_single_device(device)
    return group


def nccl_type() -> Any:
    """Torch's process group over NCCL. Raises TransportUnavailable in a torch without it."""
    try:
        from torch._C._distributed_c10d import ProcessGroupNCCL
    except ImportError as error:
        raise TransportUnavailable(f"this torch ({torch.__version__}) has no NCCL") from error
    return ProcessGroupNCCL
