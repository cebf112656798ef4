"""Copies between a pool on a device and a window of host memory."""

from collections.abc import Sequence

from torch import Tensor

from baton.kvtransfer.cuda_streams import on, side_stream, wait_for
from baton.kvtransfer.errors import torch_failures
from baton.kvtransfer.local_pool import LocalPool, runs


class StagingCopy:
    """Copies on two side streams, one per direction; every call blocks its thread until the copy is done.

    They do not synchronise with the engine's streams: announced blocks are final, and no step uses blocks that are
    still being read. A pool in host memory is copied without streams. Raises TransferFailed on a GPU error.
    """

    def __init__(self, pool: LocalPool, window: Tensor) -> None:
        """window: [num_blocks, block_bytes] in host memory, pinned if the pool is on a GPU."""
        self._pool = pool
        self._window = window.view(-1)
        device = pool.tensor.device
        is_gpu = device.type == "cuda"
        self._out = side_stream(device) if is_gpu else None
        self._in = side_stream(device) if is_gpu else None

    def copy_out(self, units: Sequence[int], unit_bytes: int, first: int) -> None:
        """Copy units of the pool into the window's units from `first` on."""
        self._copy(units, unit_bytes, first, is_out=True)

    def copy_in(self, units: Sequence[int], unit_bytes: int, first: int) -> None:
        """Copy the window's units from `first` on into units of the pool."""
        self._copy(units, unit_bytes, first, is_out=False)

    def _copy(self, units: Sequence[int], unit_bytes: int, first: int, is_out: bool) -> None:
        rows, window = self._pool.rows(unit_bytes), self._window.view(-1, unit_bytes)
        stream = self._out if is_out else self._in
        with torch_failures("copying blocks between GPU and host"), on(stream):
            for run in runs(units, range(first, first + len(units)), len(units)):
                pool_part = rows[run.remote : run.remote + run.num_units]
                window_part = window[run.local : run.local + run.num_units]
                if is_out:
                    window_part.copy_(pool_part, non_blocking=True)
                else:
                    pool_part.copy_(window_part, non_blocking=True)
            if stream is not None:
                wait_for(stream)
