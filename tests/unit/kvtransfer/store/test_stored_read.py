"""Reads of stored blocks into a pool: what reaches it, and when nothing is written to it any more."""

import threading
import time
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.pool_blocks import PoolBlocks
from baton.kvtransfer.store.store import Key, KVStore, StoreUnavailable
from baton.kvtransfer.store.stored_read import StoredRead
from tests.unit.kvtransfer.store.store_rig import BLOCK_BYTES, NAMESPACE, block_of, key_of, path_of, write

NUM_BLOCKS = 6
OLD = 7  # in each byte of the pool


class WatchedStore(DirectoryStore):
    """A directory that notes the memory it reads into, and may wait in the middle of a read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, NAMESPACE, 1 << 20)
        self.reads: list[memoryview] = []
        self.may_end = threading.Event()
        self.may_end.set()
        self.is_reading = threading.Event()
        self.fails = False

    def read(self, key: Key, into: memoryview) -> bool:
        self.reads.append(into)
        self.is_reading.set()
        into.cast("B")[:10] = bytes(10)
        assert self.may_end.wait(10)
        if self.fails:
            raise StoreUnavailable("the folder is gone")
        return super().read(key, into)


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    store = WatchedStore(tmp_path / "store")
    write(store, *range(NUM_BLOCKS - 1))
    return store


@pytest.fixture
def pool() -> torch.Tensor:
    return torch.full((NUM_BLOCKS, BLOCK_BYTES), OLD, dtype=torch.uint8)


def read_of(pool: torch.Tensor, store: KVStore, numbers: list[int], in_memory: Collection[KVStore]) -> StoredRead:
    return StoredRead(PoolBlocks(pool), [store] * len(numbers), list(map(key_of, numbers)), numbers, 1, in_memory)


def content(pool: torch.Tensor, block: int) -> bytes:
    return bytes(pool[block].tolist())


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_blocks_are_read_up_to_the_first_that_is_missing(
    pool: torch.Tensor, store: WatchedStore, is_in_memory: bool
) -> None:
    read = read_of(pool, store, [2, 0, NUM_BLOCKS - 1, 1], [store] if is_in_memory else [])
    read.run()
    assert read.abandon() == len(read.durations_s) == 2
    assert [content(pool, block) for block in (2, 0)] == [block_of(2), block_of(0)]
    assert content(pool, 1) == bytes([OLD]) * BLOCK_BYTES
    first = pool[2].numpy().ctypes.data
    is_in_pool = torch.frombuffer(store.reads[0], dtype=torch.uint8).data_ptr() == first
    assert is_in_pool == is_in_memory
    assert content(pool, NUM_BLOCKS - 1) == bytes([0 if is_in_memory else OLD]) * BLOCK_BYTES


def test_what_is_damaged_in_host_memory_is_zeroed(pool: torch.Tensor, store: WatchedStore, tmp_path: Path) -> None:
    path = path_of(tmp_path / "store", 1)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    read = read_of(pool, store, [0, 1, 2], [store])
    read.run()
    assert read.abandon() == 1
    assert content(pool, 1) == bytes(BLOCK_BYTES)
    store.fails = True
    failing = read_of(pool, store, [3], [store])
    with pytest.raises(StoreUnavailable):
        failing.run()
    assert failing.abandon() == 0
    assert content(pool, 3) == bytes(BLOCK_BYTES)


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_nothing_is_written_once_a_read_is_abandoned(
    pool: torch.Tensor, store: WatchedStore, is_in_memory: bool
) -> None:
    """A read in host memory is waited for; that of another store goes on elsewhere."""
    read = read_of(pool, store, [0, 1, 2], [store] if is_in_memory else [])
    store.may_end.clear()
    reading = threading.Thread(target=read.run)
    reading.start()
    assert store.is_reading.wait(10)

    def end_once_abandoned() -> None:
        while not read._is_abandoned:
            time.sleep(0.001)
        store.may_end.set()

    if is_in_memory:
        threading.Thread(target=end_once_abandoned).start()
    assert read.abandon() == is_in_memory
    after = pool.clone()
    store.may_end.set()
    reading.join(10)
    assert torch.equal(pool, after)
    assert len(store.reads) == 1
