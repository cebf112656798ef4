"""One directory in several processes: killed while they write, and beside each other."""

import fcntl
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from baton.kvtransfer.store import eviction
from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.store import StoreUnavailable
from tests.unit.kvtransfer.store import writer
from tests.unit.kvtransfer.store.store_rig import (
    FILE_BYTES,
    HEADER_BYTES,
    NAMESPACE,
    block_of,
    check_integrity,
    files,
    key_of,
    read,
)

REPOSITORY = Path(__file__).parents[4]
LARGE = 4 << 20  # of which most of the time is the writing
TIMEOUT_S = 120


def start(root: Path, capacity: int, block_bytes: int, seed: int, writes: int = 0, plugin: str = "") -> Popen[str]:
    arguments = [str(each) for each in (root, capacity, block_bytes, seed, writes, plugin)]
    return Popen([sys.executable, "-m", writer.__name__, *arguments], stdout=PIPE, text=True, cwd=REPOSITORY)


def wait_for_write(root: Path, process: Popen[str]) -> None:
    """Wait until a file is being written."""
    end_s = time.monotonic() + TIMEOUT_S
    while not any((root / ".writing").glob("*")):
        assert process.poll() is None
        assert time.monotonic() < end_s


def test_a_kill_leaves_no_half_block(tmp_path: Path) -> None:
    root, capacity = tmp_path / "root", 40 * LARGE
    DirectoryStore(root, NAMESPACE, capacity)
    num_left = 0
    for seed in range(6):
        with start(root, capacity, LARGE, seed) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            wait_for_write(root, process)
            process.kill()
        num_left += len(list((root / ".writing").glob("*")))
        store = DirectoryStore(root, NAMESPACE, capacity)
        assert list((root / ".writing").glob("*")) == []
        num_files = len(files(root))
        assert sum(read(store, number, LARGE) for number in range(writer.NUM_BLOCKS)) == num_files
    assert num_left > 0
    store._evictor.scan()
    check_integrity(store, root)


def test_a_start_leaves_the_writes_of_others_alone(tmp_path: Path) -> None:
    """A block that is being written by another store is not an abandoned one."""
    root = tmp_path / "root"
    first = DirectoryStore(root, NAMESPACE, 1 << 20)
    with Popen(
        [sys.executable, "-c", HOLDER, str(root / ".writing" / "file")], stdin=PIPE, stdout=PIPE, text=True
    ) as holder:
        (root / ".writing").mkdir()
        assert holder.stdin is not None
        assert holder.stdout is not None
        holder.stdin.write("go\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "locked\n"
        first._evictor.scan()
        assert (root / ".writing" / "file").exists()
        holder.stdin.close()
    first._evictor.scan()
    assert not (root / ".writing" / "file").exists()


HOLDER = """
import fcntl, sys
sys.stdin.readline()
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.readline()
"""


def test_processes_and_threads_share_the_capacity(tmp_path: Path) -> None:
    root, block_bytes = tmp_path / "root", 10_000
    capacity = writer.NUM_BLOCKS // 2 * (block_bytes + HEADER_BYTES)
    processes = [start(root, capacity, block_bytes, seed, 400) for seed in range(2)]
    assert [process.wait(TIMEOUT_S) for process in processes] == [0, 0]
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    store = DirectoryStore(root, NAMESPACE, capacity)
    assert capacity * 0.8 < sum(path.stat().st_size for path in files(root)) <= capacity + 2 * block_bytes
    counted = store.use()
    store._evictor.scan()
    assert abs(counted.num_blocks - store.use().num_blocks) <= 4
    check_integrity(store, root)


def test_threads_share_a_store(tmp_path: Path) -> None:
    root, block_bytes = tmp_path / "root", 10_000
    capacity = 30 * (block_bytes + HEADER_BYTES)
    store = DirectoryStore(root, NAMESPACE, capacity)
    errors: list[BaseException] = []

    def run(first: int) -> None:
        try:
            for number in range(first, first + 150):
                store.write(key_of(number % 50), block_of(number % 50, block_bytes))
                read(store, (number * 7) % 50, block_bytes)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(first,)) for first in (0, 13, 29, 31)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert sum(path.stat().st_size for path in files(root)) <= capacity + 4 * block_bytes
    store._evictor.scan()
    check_integrity(store, root)


def test_while_another_process_evicts_writes_use_the_rest_and_then_store_nothing(tmp_path: Path) -> None:
    root = tmp_path / "root"
    capacity = 200 * (1000 + HEADER_BYTES)
    store = DirectoryStore(root, NAMESPACE, capacity)
    for number in range(195):
        assert store.write(key_of(number), block_of(number))
    with (root / ".evicting").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        written = [store.write(key_of(number), block_of(number)) > 0 for number in range(195, 205)]
    assert written == [True] * 5 + [False] * 5
    assert store.write(key_of(204), block_of(204)) > 0
    assert len(files(root)) == 191
    check_integrity(store, root)


def test_a_large_directory_is_scanned_by_a_thread_while_writes_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eviction, "MAX_BLOCKS_AT_ONCE", 100)
    root = tmp_path / "root"
    store = DirectoryStore(root, NAMESPACE, 200 * FILE_BYTES)
    for number in range(196):
        assert store.write(key_of(number), block_of(number))
    entered, leave = threading.Event(), threading.Event()
    scan = store._evictor.scan

    def wait(room_bytes: int) -> None:
        entered.set()
        assert leave.wait(TIMEOUT_S)
        scan(room_bytes)

    monkeypatch.setattr(store._evictor, "scan", wait)
    written = [store.write(key_of(number), block_of(number)) > 0 for number in range(196, 206)]
    assert written == [True] * 4 + [False] * 6
    assert entered.wait(TIMEOUT_S)
    leave.set()
    store.close()
    assert len(files(root)) == 190
    check_integrity(store, root)


def test_an_error_of_the_thread_is_raised_by_the_next_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "MAX_BLOCKS_AT_ONCE", 0)
    store = DirectoryStore(tmp_path / "root", NAMESPACE, 2 * FILE_BYTES)
    store.write(key_of(0), block_of(0))

    def fail(room_bytes: int) -> None:
        raise StoreUnavailable("the disk has failed")

    monkeypatch.setattr(store._evictor, "scan", fail)
    store.write(key_of(1), block_of(1))
    store.close()
    with pytest.raises(StoreUnavailable, match="the disk has failed"):
        store.write(key_of(2), block_of(2))
