"""All blocks of a store, whatever their namespace, as exports read them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from baton.kvtransfer.store.envelope import HEADER_BYTES, NAMESPACE, is_intact
from baton.kvtransfer.store.eviction import BLOCK, FAN
from baton.kvtransfer.store.private_folder import PrivateFolder
from baton.kvtransfer.store.shared_memory_directory import SHM
from baton.kvtransfer.store.store import Key
from baton.kvtransfer.store.usage import Count

FOLDER = "baton-kv"  # a store creates it in a directory, and uses it alone
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class InvalidExport(Exception):
    """A directory that is no export, or a damaged or foreign one; the message says which."""


class BlockSource(Protocol):
    """The blocks of a store, which processes may use at the same time. Calls raise StoreUnavailable."""

    def namespaces(self) -> list[str]:
        """Return the namespaces, in order."""
        ...

    def keys(self, namespace: str) -> Iterator[Key]:
        """Yield the keys of the blocks in a namespace."""
        ...

    def read(self, namespace: str, key: Key) -> bytes | None:
        """Return a block; None if it was deleted meanwhile. Raises InvalidExport for a damaged one."""
        ...


@dataclass(frozen=True, slots=True)
class BlockFolder:
    """A folder of blocks, which processes may use at the same time."""

    path: Path

    def namespaces(self) -> list[str]:
        """Return the namespaces, in order. Raises StoreUnavailable."""
        with PrivateFolder(self.path).open() as folder:
            return sorted(name for name in os.listdir(folder) if NAMESPACE.fullmatch(name))

    def keys(self, namespace: str) -> Iterator[Key]:
        """Yield the keys of the blocks in a namespace; none if it was deleted. Raises StoreUnavailable."""
        root, fans = PrivateFolder(self.path), list[str]()
        with suppress(FileNotFoundError), root.open(namespace) as folder:
            fans = sorted(name for name in os.listdir(folder) if FAN.fullmatch(name))
        for fan in fans:
            with suppress(FileNotFoundError), root.open(namespace, fan) as folder:
                names = sorted(name for name in os.listdir(folder) if BLOCK.fullmatch(name))
                yield from map(bytes.fromhex, names)

    def count(self, namespace: str) -> Count:
        """Return the number and the size of the blocks in a namespace. Raises StoreUnavailable."""
        count, root = Count(), PrivateFolder(self.path)
        for name in map(bytes.hex, self.keys(namespace)):
            with suppress(FileNotFoundError), root.open(namespace, name[:2]) as folder:
                count = count.plus(Count(1, os.stat(name, dir_fd=folder, follow_symlinks=False).st_size))
        return count

    def read(self, namespace: str, key: Key) -> bytes | None:
        """Return the content of a block's file behind its header; None if it was deleted meanwhile.

        Raises InvalidExport for a damaged one, StoreUnavailable if it cannot be read.
        """
        name = key.hex()
        with suppress(FileNotFoundError), PrivateFolder(self.path).open(namespace, name[:2]) as folder:
            with os.fdopen(os.open(name, READ, dir_fd=folder), "rb") as file:
                content = file.read()
            return intact_payload(content, namespace, key, self.path / namespace / name[:2] / name)
        return None


def store_folders(place: str) -> list[BlockFolder]:
    """Return the folders of a store: in a directory (--kv-disk, --kv-store), or `host` for this user's host memory.

    Raises InvalidExport if there is none.
    """
    if place == "host":
        found = sorted(SHM.glob(f"baton-kv-{os.geteuid()}-*"))
    else:
        found = [path for path in (Path(place) / FOLDER, Path(place)) if (path / ".usage").is_file()][:1]
    if not found:
        where = "this user's workers have no blocks in host memory" if place == "host" else f"{place} has no KV store"
        raise InvalidExport(f"{where}; set the directory of --kv-disk or --kv-store, or host for host memory")
    return [BlockFolder(path) for path in found]


def intact_payload(content: bytes, namespace: str, key: Key, where: object) -> bytes:
    """Return a stored block without its header. Raises InvalidExport, with its place, if it is damaged."""
    payload = memoryview(content)[HEADER_BYTES:]
    if not is_intact(content[:HEADER_BYTES], namespace, key, payload):
        raise InvalidExport(f"{where} is damaged: its checksum is wrong")
    return bytes(payload)
