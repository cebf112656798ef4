"""The store in a directory whose files NIXL's POSIX plugin copies."""

import errno
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.kvtransfer.errors import TransferFailed
from baton.kvtransfer.nixl.storage import NixlStorage, StoragePlace
from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.factory import open_source, open_store
from baton.kvtransfer.store.nixl_files import NixlFiles
from baton.kvtransfer.store.store import KVStore, StoreUnavailable
from tests.unit.kvtransfer.store import writer
from tests.unit.kvtransfer.store.store_rig import (
    BLOCK_BYTES,
    NAMESPACE,
    block_of,
    check_contract,
    check_integrity,
    files,
    key_of,
    open_descriptors,
    path_of,
    read,
    write,
)
from tests.unit.kvtransfer.store.test_directory_processes import LARGE, start, wait_for_write

CAPACITY = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "baton-kv"


@pytest.fixture
def store(root: Path, tmp_path: Path) -> Iterator[KVStore]:
    """A store that leaks no descriptor of a block."""
    store = open_store(f"nixl-posix://{tmp_path}", NAMESPACE, CAPACITY, name="shared")
    write(store, 1000)  # NIXL has what it keeps
    assert read(store, 1000)
    store.clear()
    before = open_descriptors()
    yield store
    assert open_descriptors() == before
    store.close()


def test_it_keeps_the_contract(store: KVStore, root: Path) -> None:
    check_contract(store)
    assert (store.name, store.use().capacity_bytes) == ("shared", CAPACITY)
    assert isinstance(store, DirectoryStore)
    check_integrity(store, root)


def test_its_blocks_are_those_of_a_directory(store: KVStore, root: Path, tmp_path: Path) -> None:
    """So exports read them, and a worker without NIXL finds them."""
    plain = open_store(str(tmp_path), NAMESPACE, CAPACITY)
    write(store, 0)
    assert read(plain, 0)
    write(plain, 1)
    assert read(store, 1)
    [source] = open_source(f"nixl-posix://{tmp_path}")
    assert source.read(NAMESPACE, key_of(0)) == block_of(0)


def test_other_bytes_are_a_miss_and_deleted(store: KVStore, root: Path) -> None:
    path = path_of(root, 0)
    write(store, 0)
    content = path.read_bytes()
    for changed in (content[:-1], content + b"x", b"", content[:-1] + bytes([content[-1] ^ 1]), b"x" + content[1:]):
        path.write_bytes(changed)
        assert not read(store, 0)
        assert not path.exists()
    write(store, 0)
    assert read(store, 0)


def test_threads_copy_at_the_same_time(store: KVStore) -> None:
    failures: list[int] = []

    def work(first: int) -> None:
        for number in range(first, first + 20):
            store.write(key_of(number), block_of(number))
            if not read(store, number):
                failures.append(number)

    threads = [threading.Thread(target=work, args=(20 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert store.use().num_blocks == 80


def test_a_full_disk_is_reported_and_leaves_nothing(
    store: KVStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", fail)
        with pytest.raises(StoreUnavailable, match="No space left on device; free some space"):
            store.write(key_of(0), block_of(0))
    assert files(root) == []
    write(store, 0)
    assert read(store, 0)


def test_a_failed_copy_is_reported_and_the_next_one_works(tmp_path: Path) -> None:
    storage, (path, into) = NixlStorage("POSIX", {}), (tmp_path / "file", memoryview(bytearray(100)))
    path.write_bytes(b"short")
    with path.open("rb") as file:
        with pytest.raises(TransferFailed, match="POSIX plugin failed: nixlBackendError"):
            storage.copy("READ", into, StoragePlace("FILE", file.fileno()))
        storage.copy("READ", into[:4], StoragePlace("FILE", file.fileno(), 1))
    assert bytes(into[:4]) == b"hort"
    storage.close()


@pytest.mark.parametrize(
    ("plugin", "parameters", "message"),
    [
        ("POSIX", {"use_aoi": "true"}, "use_aoi is no parameter of NIXL's POSIX plugin; it has ios_pool_size"),
        ("POSIX", {"use_aio": "true", "use_uring": "true"}, "POSIX plugin does not start here: .*; check its param"),
        ("NONE", {}, "NONE plugin does not start here"),
        ("GDS", {}, r"GDS plugin does not start here: .*; it needs libcufile\.so\.0, and valid parameters"),
    ],
)
def test_a_plugin_that_does_not_start_is_reported(plugin: str, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(StoreUnavailable, match=message) as caught:
        NixlFiles(plugin, parameters)
    assert re.search("\n", str(caught.value)) is None


@pytest.mark.slow
def test_a_kill_leaves_no_half_block(tmp_path: Path) -> None:
    root, capacity = tmp_path / "root", 40 * LARGE
    DirectoryStore(root, NAMESPACE, capacity)
    for seed in range(3):
        with start(root, capacity, LARGE, seed, plugin="POSIX") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            wait_for_write(root, process)
            process.kill()
        store = DirectoryStore(root, NAMESPACE, capacity, files=NixlFiles("POSIX", {}))
        assert list((root / ".writing").glob("*")) == []
        num_files = len(files(root))
        assert sum(read(store, number, LARGE) for number in range(writer.NUM_BLOCKS)) == num_files
        store.close()


def test_uring_and_aio_read_what_the_other_has_written(tmp_path: Path) -> None:
    """Kernels may refuse io_uring, as containers do; then the start says so."""
    aio = open_store(f"nixl-posix://{tmp_path}?use_aio=true", NAMESPACE, CAPACITY)
    write(aio, 0)
    try:
        uring = open_store(f"nixl-posix://{tmp_path}?use_uring=true", NAMESPACE, CAPACITY)
    except StoreUnavailable:
        pytest.skip("no io_uring here")
    assert read(uring, 0)
    assert uring.write(key_of(1), block_of(1)) > BLOCK_BYTES
    assert read(aio, 1)
    for each in (aio, uring):
        each.close()
