"""The communicator of two processes, one of which sends: NCCL between GPUs, gloo between CPUs."""

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
MAX_CTAS = 4  # per communicator; bounds its use of SMs, and of memory per CTA

# Torch's watchdog ends the whole process when NCCL fails or is late. With blocking wait there is no watchdog and the
# waiting call raises instead. Torch reads the variable when it creates a process group; it is set at import, before
# there are threads that read the environment.
BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
os.environ.setdefault(BLOCKING_WAIT, "1")


def own_store(host: str, timeout_s: float) -> tuple[Store, int]:
    """Open a store for one group that listens on `host` only; return it and its port. Raises OSError, RuntimeError."""
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port: int = listener.getsockname()[1]
    timeout = timedelta(seconds=timeout_s)
    store = TCPStore(
        host, port, None, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def peers_store(host: str, port: int, timeout_s: float) -> Store:
    """Connect to the store that a peer has opened; blocks. Raises RuntimeError after `timeout_s`."""
    return TCPStore(host, port, None, is_master=False, timeout=timedelta(seconds=timeout_s))


class PairGroup:
    """One side of a process group of two. Every call blocks; except `abort`, one thread at a time may call.

    It sends from and receives into buffers outside the pool, so that an aborted communicator never holds a block.
    """

    def __init__(
        self, store: Store, rank: int, host: str, device: torch.device, timeout_s: float, streams: SideStreams
    ) -> None:
        """Connect, which with NCCL may never return. `timeout_s`: for each chunk, from the start of the wait for it.

        Raises RuntimeError if the other side does not connect.
        """
        self._store = store  # the owner's is the server; kept so that it lives as long as the group
        self._device = device
        self._other = 1 - rank
        make = _nccl if device.type == "cuda" else _gloo
        self._group: Any = make(store, rank, host, device, timedelta(seconds=timeout_s))
        self._streams = streams
        self._stream = streams.take()

    def send(self, rows: Tensor, units: Sequence[int]) -> None:
        """Send rows of a pool as one message. Raises PeerLost or TransferFailed."""
        with torch_failures("sending blocks"), on(self._stream):
            chunk = rows.index_select(0, self._index(units))
            self._wait(lambda group: group.send([chunk], self._other, TAG))

    def receive(self, num_units: int, unit_bytes: int) -> Tensor:
        """Receive one message of rows into a new buffer, [num_units, unit_bytes].

        Raises PeerLost, or TransferFailed; after the latter the message has still to be received.
        """
        with torch_failures("receiving blocks"), on(self._stream):
            chunk = torch.empty(num_units, unit_bytes, dtype=torch.uint8, device=self._device)
            self._wait(lambda group: group.recv([chunk], self._other, TAG))
        return chunk

    def scatter(self, chunk: Tensor, rows: Tensor, units: Sequence[int]) -> None:
        """Copy received rows into rows of a pool. Raises TransferFailed."""
        with torch_failures("copying received blocks"):
            with on(self._stream):
                rows.index_copy_(0, self._index(units), chunk)
            if self._stream is not None:
                wait_for(self._stream)

    def abort(self) -> None:
        """End the calls in flight: at once with NCCL; with gloo when the other side ends or the timeout expires.

        Callable from any thread; idempotent.
        """
        group, self._group = self._group, None
        if group is None:
            return
        try:
            group.abort()
        except RuntimeError as error:  # its stream may still be in use and is not reused
            logger.warning("cannot abort a communicator: %s", first_line(error))
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
    """Make CUDA load the kernels with which a group copies rows; the rows stay unchanged.

    CUDA loads a kernel on its first use and may wait for all running kernels, including NCCL's, which wait for a peer.
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
    options = nccl.Options(is_high_priority_stream=True)  # never one of the engine's streams; see `cuda_streams`
    options.config.max_ctas = MAX_CTAS
    options._timeout = timeout
    group = nccl(PrefixStore("nccl", store), rank, 2, options)
    torch.cuda.set_device(device)
    group.eager_connect_single_device(device)
    return group


def nccl_type() -> Any:
    """Return torch's process group class for NCCL. Raises TransportUnavailable if torch was built without it."""
    try:
        from torch._C._distributed_c10d import ProcessGroupNCCL
    except ImportError as error:
        raise TransportUnavailable(f"this torch ({torch.__version__}) has no NCCL") from error
    return ProcessGroupNCCL


def require_blocking_wait() -> None:
    """Raise TransportUnavailable if the environment makes torch end the process when a peer is late."""
    value = os.environ.get(BLOCKING_WAIT, "")
    if value.lower() not in ("1", "t", "true", "y", "yes"):
        raise TransportUnavailable(
            f"{BLOCKING_WAIT} is {value!r}: torch would end this process when a peer is late; unset it, or set it to 1"
        )
