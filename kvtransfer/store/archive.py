"""Copies of stored blocks between directories: an export of a cluster's KV, from which another one starts warm.

DIRECTORY/
    export.json     format version, and number and bytes of blocks by namespace
    baton-kv/       the blocks, in the format of a directory store; encrypted ones stay encrypted

A namespace is a fingerprint of model, weights, data type and layout, with a suffix for each key that encrypts blocks.
"""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import orjson

from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.envelope import HEADER_BYTES, NAMESPACE, check_namespace, is_intact
from baton.kvtransfer.store.eviction import BLOCK, FAN
from baton.kvtransfer.store.factory import FOLDER
from baton.kvtransfer.store.private_folder import PrivateFolder
from baton.kvtransfer.store.shared_memory_directory import SHM
from baton.kvtransfer.store.store import Key, StoreUnavailable
from baton.kvtransfer.store.usage import Count

MANIFEST = "export.json"
VERSION = 1
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
UNLIMITED = 1 << 62


class InvalidExport(Exception):
    """A directory that is no export, or a damaged or foreign one; the message says which."""


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
            payload = memoryview(content)[HEADER_BYTES:]
            if not is_intact(content[:HEADER_BYTES], namespace, key, payload):
                raise InvalidExport(f"{self.path / namespace / name[:2] / name} is damaged: its checksum is wrong")
            return bytes(payload)
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


def export_blocks(sources: Collection[BlockFolder], target: Path) -> Mapping[str, Count]:
    """Copy all blocks of stores into a new directory; return what it has by namespace.

    Damaged blocks are left out. An export that ended early is completed. Raises InvalidExport if the directory has an
    export, StoreUnavailable.
    """
    if (target / MANIFEST).exists():
        raise InvalidExport(f"{target} has an export already; choose another directory, or delete it")
    target.mkdir(parents=True, exist_ok=True)
    for source in sources:
        for namespace in source.namespaces():
            store = DirectoryStore(target / FOLDER, namespace, UNLIMITED)
            for key in source.keys(namespace):
                with suppress(InvalidExport):
                    block = source.read(namespace, key)
                    if block is not None:
                        store.write(key, memoryview(block))
            store.close()
    made = BlockFolder(target / FOLDER)
    counts = {name: count for name in made.namespaces() if (count := made.count(name)).num_blocks}
    content = {
        "version": VERSION,
        "created_s": round(time.time()),
        "namespaces": {name: {"blocks": each.num_blocks, "bytes": each.num_bytes} for name, each in counts.items()},
    }
    (target / MANIFEST).write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
    return counts


def read_manifest(export: Path) -> Mapping[str, Count]:
    """Return what an export has by namespace. Raises InvalidExport."""
    try:
        content = orjson.loads((export / MANIFEST).read_bytes())
    except OSError as error:
        raise InvalidExport(f"{export} is no export: {MANIFEST}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InvalidExport(f"{export / MANIFEST} is damaged: {error}") from error
    match content:
        case {"version": 1, "namespaces": dict() as namespaces}:
            with suppress(KeyError, TypeError, ValueError):
                return {
                    check_namespace(name): Count(int(each["blocks"]), int(each["bytes"]))
                    for name, each in namespaces.items()
                }
    raise InvalidExport(f"{export / MANIFEST} is damaged, or of another version than {VERSION}")


def matching(manifest: Mapping[str, Count], fingerprints: Collection[str], where: str) -> list[str]:
    """Return the namespaces of an export that workers with these fingerprints can use.

    `where`: whose fingerprints they are. Raises InvalidExport if there is none.
    """
    found = [name for name in manifest if any(name == each or name.startswith(f"{each}.") for each in fingerprints)]
    if not found:
        raise InvalidExport(
            f"the export has KV of {_names(manifest)}, but {where} {_names(fingerprints)}: model, weights, data type "
            "or layout differ"
        )
    return found


def import_blocks(export: Path, namespaces: Collection[str], target: Path, capacity_bytes: int) -> Count:
    """Copy the blocks of an export into the store in a directory; return how many were not there.

    All checksums are verified before the first block is written. Raises InvalidExport, StoreUnavailable.
    """
    source, manifest = BlockFolder(export / FOLDER), read_manifest(export)
    num_bytes = sum(manifest[namespace].num_bytes for namespace in namespaces)
    if num_bytes > capacity_bytes:
        raise InvalidExport(
            f"the export has {num_bytes} bytes, but the store may hold {capacity_bytes}; raise its size"
        )
    for namespace in namespaces:
        num_blocks = sum(source.read(namespace, key) is not None for key in source.keys(namespace))
        if num_blocks != manifest[namespace].num_blocks:
            raise InvalidExport(
                f"{export} is incomplete: it has {num_blocks} of {manifest[namespace].num_blocks} blocks of {namespace}"
            )
    added = Count()
    for namespace in namespaces:
        store = DirectoryStore(target / FOLDER, namespace, capacity_bytes)
        for key in source.keys(namespace):
            block = source.read(namespace, key)
            if block is None:
                raise StoreUnavailable(f"{export} was changed while it was read")
            if size := store.write(key, memoryview(block)):
                added = added.plus(Count(1, size))
        store.close()
    return added


def _names(fingerprints: Collection[str]) -> str:
    return ", ".join(fingerprints) or "nothing"
