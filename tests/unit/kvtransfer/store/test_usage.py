"""The count of a folder's blocks that processes share."""

import threading
from pathlib import Path

import pytest

from baton.kvtransfer.store.private_folder import PrivateFolder
from baton.kvtransfer.store.usage import MAGIC, RECORD, Count, Usage

NUM_ADDITIONS = 300


@pytest.fixture
def folder(tmp_path: Path) -> PrivateFolder:
    return PrivateFolder(tmp_path / "root")


def test_a_count_is_shared_and_never_negative(folder: PrivateFolder) -> None:
    first, second = Usage(folder), Usage(folder)
    first.add(Count(1, 10))
    assert first.read() is None  # there is nothing to add to
    second.set(Count(3, 30))
    first.add(Count(2, 20))
    assert first.read() == second.read() == Count(5, 50)
    second.add(Count(-1, -60))
    assert first.read() == second.read() == Count(4, 0)


def test_no_addition_is_lost(folder: PrivateFolder) -> None:
    """Each has a descriptor of its own, as in other processes."""
    usages = [Usage(folder) for _ in range(4)]
    usages[0].set(Count())

    def add(usage: Usage) -> None:
        for _ in range(NUM_ADDITIONS):
            usage.add(Count(1, 10))

    threads = [threading.Thread(target=add, args=(usage,)) for usage in usages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for usage in usages:
        usage.add(Count())  # what had to wait for the lock
    assert usages[0].read() == Count(4 * NUM_ADDITIONS, 40 * NUM_ADDITIONS)


@pytest.mark.parametrize(
    "content", [b"", b"other", bytes(RECORD.size), RECORD.pack(MAGIC, -1, 5), RECORD.pack(MAGIC, 1, -5)]
)
def test_other_bytes_are_no_count(folder: PrivateFolder, content: bytes) -> None:
    (folder.path / ".usage").write_bytes(content)
    usage = Usage(folder)
    usage.add(Count(1, 10))
    assert usage.read() is None
    usage.set(Count(1, 10))
    assert usage.read() == Count(1, 10)
