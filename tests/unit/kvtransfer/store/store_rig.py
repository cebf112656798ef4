"""Blocks, keys and clocks for the tests of stores."""

import os
from hashlib import blake2b
from pathlib import Path

import pytest

from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.envelope import HEADER_BYTES
from baton.kvtransfer.store.store import Key, KVStore, StoreUse

NAMESPACE = "fingerprint-1"
BLOCK_BYTES = 1000
FILE_BYTES = HEADER_BYTES + BLOCK_BYTES
SECOND = 10**9


class Clock:
    """A clock in ns that tests set."""

    def __init__(self) -> None:
        self.now_ns = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now_ns

    def advance(self, seconds: float) -> None:
        """Go forward, or back."""
        self.now_ns += int(seconds * SECOND)


def key_of(number: int) -> Key:
    """Return the key of a block."""
    return blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def block_of(number: int, num_bytes: int = BLOCK_BYTES) -> memoryview:
    """Return the content that a block has."""
    return memoryview(blake2b(number.to_bytes(8, "little")).digest() * (num_bytes // 64 + 1))[:num_bytes]


def read(store: KVStore, number: int, num_bytes: int = BLOCK_BYTES) -> bool:
    """Return whether the store has a block; if it returns one, it is the right one."""
    into = bytearray(num_bytes)
    found = store.read(key_of(number), memoryview(into))
    assert not found or into == block_of(number, num_bytes)
    return found


def write(store: KVStore, *numbers: int) -> None:
    """Store blocks that are not there."""
    for number in numbers:
        assert store.write(key_of(number), block_of(number)) >= BLOCK_BYTES


def stored(store: KVStore, numbers: range) -> list[int]:
    """Return the numbers of the blocks that the store seems to have, without use of them."""
    return [number for number in numbers if store.count([key_of(number)])]


def path_of(root: Path, number: int, namespace: str = NAMESPACE) -> Path:
    """Return the file of a block in a directory."""
    name = key_of(number).hex()
    return root / namespace / name[:2] / name


def files(root: Path) -> list[Path]:
    """Return the files of all blocks."""
    return [Path(folder, name) for folder, _, names in os.walk(root) if folder != str(root) for name in names]


def check_integrity(store: DirectoryStore, root: Path) -> None:
    """Raise AssertionError unless the count is that of the files, and nothing is left of a write."""
    sizes = [path.stat().st_size for path in files(root)]
    assert store.use() == StoreUse(len(sizes), sum(sizes), store.use().capacity_bytes)
    assert list((root / ".writing").glob("*")) == []


def open_descriptors() -> int:
    """Return how many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def check_contract(store: KVStore) -> None:
    """Raise AssertionError unless an empty store does what KVStore promises."""
    keys = [key_of(number) for number in range(40)]
    assert store.count(keys) == store.count([]) == 0
    assert store.has(keys) == [False] * 40
    assert not read(store, 0)
    for number in (*range(35), 36):
        assert store.write(key_of(number), block_of(number)) >= BLOCK_BYTES
        assert store.write(key_of(number), block_of(number)) == 0
    assert all(read(store, number) for number in range(35))
    assert not read(store, 35)
    for end in (0, 1, 5, 20, 35, 36):
        assert store.count(keys[:end]) == min(end, 35)
    assert store.count(keys) in (35, 37)  # a gap may go unnoticed
    assert store.count(keys[34:]) == 1
    assert store.has(keys) == [number < 35 or number == 36 for number in range(40)]
    assert store.has([]) == []
    wide = block_of(100).cast("I", (5, 50))
    assert store.write(key_of(100), wide) >= BLOCK_BYTES
    into = memoryview(bytearray(BLOCK_BYTES)).cast("d")
    assert store.read(key_of(100), into)
    assert into.cast("B") == block_of(100)
    for call in (
        lambda: store.count([b"short"]),
        lambda: store.write(b"", block_of(0)),
        lambda: store.read(b"1", into),
    ):
        with pytest.raises(ValueError, match="16 bytes, not"):
            call()
    assert store.clear() == 37
    assert store.count(keys) == store.clear() == 0
    assert store.write(key_of(0), block_of(0)) >= BLOCK_BYTES
    assert read(store, 0)
