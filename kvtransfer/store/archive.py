"""Copies of stored blocks between directories: an export of a cluster's KV, from which another one starts warm.

DIRECTORY/
    export.json     format version, and number and bytes of blocks by namespace
    baton-kv/       the blocks, in the format of a directory store; encrypted ones stay encrypted

A namespace is a fingerprint of model, weights, data type and layout, with a suffix for each key that encrypts blocks.
"""

import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import orjson

from baton.kvtransfer.store.block_source import FOLDER, BlockFolder, BlockSource, InvalidExport
from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.envelope import check_namespace
from baton.kvtransfer.store.factory import open_store
from baton.kvtransfer.store.store import StoreUnavailable
from baton.kvtransfer.store.usage import Count
from baton.settings.store_directory import store_directory

MANIFEST = "export.json"
VERSION = 1
UNLIMITED = 1 << 62


def export_blocks(sources: Collection[BlockSource], target: Path) -> Mapping[str, Count]:
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


def import_blocks(
    export: Path, namespaces: Collection[str], target: str, capacity_bytes: int, ttl_s: float | None = None
) -> Count:
    """Copy the blocks of an export into the store at a URL, or in a directory; return how many were not there.

    capacity_bytes, ttl_s: see `open_store`. All checksums are verified before the first block is written. Raises
    OptionError, InvalidExport, StoreUnavailable.
    """
    source, manifest = BlockFolder(export / FOLDER), read_manifest(export)
    num_bytes = sum(manifest[namespace].num_bytes for namespace in namespaces)
    if num_bytes > capacity_bytes and store_directory(target) is not None:
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
        store = open_store(target, namespace, capacity_bytes, ttl_s=ttl_s)
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
