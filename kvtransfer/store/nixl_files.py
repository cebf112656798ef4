"""Copies of blocks' files by NIXL's POSIX and GDS plugins."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from baton.kvtransfer.errors import TransferFailed, TransportUnavailable
from baton.kvtransfer.nixl.storage import NixlStorage, StoragePlace
from baton.kvtransfer.store.envelope import HEADER_BYTES
from baton.kvtransfer.store.store import StoreUnavailable


class NixlFiles:
    """Headers are copied by the kernel, and payloads by NIXL: one request for each, so that none outlives a failure.

    The files are those of other directories of blocks.
    """

    def __init__(self, plugin: str, parameters: Mapping[str, str]) -> None:
        """Raise StoreUnavailable if the plugin does not work here, or has no such parameter."""
        with translated_failures():
            self._storage = NixlStorage(plugin, parameters)

    def read(self, fd: int, header: bytearray, payload: memoryview) -> Iterator[memoryview]:
        """Fill both from a file, and yield the payload; nothing if the file is shorter."""
        if os.fstat(fd).st_size < len(header) + payload.nbytes or os.preadv(fd, [header], 0) < len(header):
            return
        with translated_failures():
            self._storage.copy("READ", payload, StoragePlace("FILE", fd, HEADER_BYTES))
        yield payload

    def write(self, fd: int, header: bytes, payload: memoryview) -> None:
        """Write both to an empty file. The space is allocated first: NIXL does not say that a disk is full."""
        os.posix_fallocate(fd, 0, len(header) + payload.nbytes)
        os.pwrite(fd, header, 0)
        with translated_failures():
            self._storage.copy("WRITE", payload, StoragePlace("FILE", fd, HEADER_BYTES))

    def close(self) -> None:
        """Destroy NIXL's agents."""
        self._storage.close()


@contextmanager
def translated_failures() -> Iterator[None]:
    """Raise NIXL's failures as StoreUnavailable."""
    try:
        yield
    except (TransferFailed, TransportUnavailable) as error:
        raise StoreUnavailable(str(error)) from error
