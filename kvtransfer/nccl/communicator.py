"""The communicator of two processes, of which one sends: NCCL between GPUs, gloo between CPUs."""

import logging
import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore

from baton.kvtransfer.cuda_streams import SideStreams, on, wait_for
from baton.kvtransfer.errors import PeerLost, TransportUnavailable, first_line, torch_failures

logger = logging.getLogger(__name__)

OWNER, READER = 0, 1
TAG = 0
MAX_CTAS = 4  # of a communicator: what it takes of a GPU's processors, and memory for each

# Torch's own watchdog ends the whole process when NCCL fails or is late. With this there is none: whoever waits sees
# the failure. Read when a group is made; set here, before threads that look at the environment.
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
os.environ.setdefault(BLOCKING_WAIT, "1")


def own_store(host: str, timeout_s: float) -> tuple[Store, int]:
    """A store for one group, at `host` alone, and its port. Raises OSError or RuntimeError."""
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

    def __init__(
        self, store: Store, rank: int, host: str, device: torch.device, timeout_s: float, streams: SideStreams
    ) -> None:
        """Connects, which with NCCL may take for ever. `timeout_s`: for each chunk from when it is waited for.

        Raises RuntimeError if the other side does not come.
        """
        self._store = store  # of the owner: it is served for as long as the group is there
        self._device = device
        self._other = 1 - rank
        make = _nccl if device.type == "cuda" else _gloo
        self._group: Any = make(store, rank, host, device, timedelta(seconds=timeout_s))
        self._streams = streams
        self._stream = streams.take()

    def send(self, rows: Tensor, units: Sequence[int]) -> None:
        """Sends rows of a pool, together. Raises PeerLost or TransferFailed."""
        with torch_failures("sending blocks"), on(self._stream):
            chunk = rows.index_select(0, self._index(units))
            self._wait(lambda group: group.send([chunk], self._other, TAG))

    def receive(self, num_units: int, unit_bytes: int) -> Tensor:
        """So many rows that the other side sends together, in memory of their own.

        Raises PeerLost, or TransferFailed, and then they have not been received.
        """
        with torch_failures("receiving blocks"), on(self._stream):
            chunk = torch.empty(num_units, unit_bytes, dtype=torch.uint8, device=self._device)
            self._wait(lambda group: group.recv([chunk], self._other, TAG))
        return chunk

    def scatter(self, chunk: Tensor, rows: Tensor, units: Sequence[int]) -> None:
        """Copies what has come into rows of a pool. Raises TransferFailed."""
        with torch_failures("copying blocks that were received"):
            with on(self._stream):
                rows.index_copy_(0, self._index(units), chunk)
            if self._stream is not None:
                wait_for(self._stream)

    def abort(self) -> None:
        """Ends what is under way: at once with NCCL; with gloo when the other side ends, or when it has taken too long.

        From any thread; idempotent.
        """
        group, self._group = self._group, None
        if group is None:
            return
        try:
            group.abort()
        except RuntimeError as error:  # and nothing can be done about it
            logger.warning("a communicator does not end: %s", first_line(error))
            return
        self._streams.give_back(self._stream)

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
            raise PeerLost(f"the communicator is broken: {first_line(error)}") from error
        if self._group is None:
            raise PeerLost("the communicator was aborted")


def load_kernels(rows: Tensor) -> None:
    """Has CUDA load what a group copies rows with, and leaves them as they are.

    It loads a kernel when that is first used, and may wait for all that runs to do so: for NCCL's, that wait for peers.
    """
    first = torch.zeros(1, dtype=torch.int64, device=rows.device)
    rows.index_copy_(0, first, rows.index_select(0, first))


def _gloo(store: Store, rank: int, host: str, device: torch.device, timeout: timedelta) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # the stubs call it Options
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = timeout
    options._threads = 1
    return ProcessGroupGloo(PrefixStore("gloo", store), rank, 2, options)


def _nccl(store: Store, rank: int, host: str, device: torch.device, timeout: timedelta) -> Any:
    nccl = nccl_type()
    options = nccl.Options(is_high_priority_stream=True)  # or it may be one that the engine has; see `cuda_streams`
    options.config.max_ctas = MAX_CTAS
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


def require_blocking_wait() -> None:
    """Raises TransportUnavailable where somebody has set torch to end the process when a peer is late."""
    said = os.environ.get(BLOCKING_WAIT, "")
    if said.lower() not in ("1", "t", "true", "y", "yes"):
        raise TransportUnavailable(
            f"{BLOCKING_WAIT} is {said!r}: torch would end this process when a peer is late; leave it out, or set 1"
        )
