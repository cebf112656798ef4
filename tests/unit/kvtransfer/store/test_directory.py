"""The store in a directory: what it holds, and within which bounds."""

import os
import random
import stat
import time
from pathlib import Path

import pytest

from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.store import StoreUnavailable
from tests.unit.kvtransfer.store.store_rig import (
    BLOCK_BYTES,
    FILE_BYTES,
    NAMESPACE,
    Clock,
    block_of,
    check_contract,
    check_integrity,
    files,
    key_of,
    open_descriptors,
    path_of,
    read,
    stored,
    write,
)

CAPACITY = 100 * FILE_BYTES
MINUTE_NS = 60 * 10**9


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def open_store(root: Path, clock: Clock, capacity: int = CAPACITY, ttl_s: float | None = None) -> DirectoryStore:
    return DirectoryStore(root, NAMESPACE, capacity, ttl_s=ttl_s, clock=clock)


def test_it_keeps_the_contract(root: Path, clock: Clock) -> None:
    check_contract(open_store(root, clock))


def test_a_block_is_stored_once(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    assert not read(store, 0)
    assert store.write(key_of(0), block_of(0)) == FILE_BYTES
    assert store.write(key_of(0), block_of(0)) == 0
    assert read(store, 0)
    assert not read(store, 1)
    assert (store.name, store.use().num_blocks) == ("disk", 1)
    check_integrity(store, root)


def test_the_count_ends_at_the_first_missing_block(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    keys = [key_of(number) for number in range(4)]
    assert store.count(keys) == store.count([]) == 0
    write(store, 0, 1, 3)
    assert store.count(keys) == 2
    write(store, 2)
    assert store.count(keys) == 4


def test_namespaces_share_a_directory_but_no_blocks(root: Path, clock: Clock) -> None:
    store, other = open_store(root, clock), DirectoryStore(root, "other", CAPACITY, clock=clock)
    write(store, 0)
    assert not read(other, 0)
    assert other.count([key_of(0)]) == 0
    assert other.use().num_blocks == 1


def test_a_block_under_another_key_or_namespace_is_not_read(root: Path, clock: Clock) -> None:
    store, other = open_store(root, clock), DirectoryStore(root, "other", CAPACITY, clock=clock)
    write(store, 0, 1)
    write(other, 2)
    path_of(root, 0).replace(path_of(root, 1))
    assert not read(store, 1)
    path_of(root, 0, "other").parent.mkdir(parents=True, exist_ok=True)
    write(store, 0)
    path_of(root, 0).replace(path_of(root, 0, "other"))
    assert not read(other, 0)
    assert read(other, 2)


@pytest.mark.parametrize("namespace", ["", "../x", ".hidden", "a/b", "a\n", "x" * 129])
def test_a_namespace_must_be_a_file_name(root: Path, clock: Clock, namespace: str) -> None:
    with pytest.raises(ValueError, match=r"must have 1 to 128 letters"):
        DirectoryStore(root, namespace, CAPACITY, clock=clock)


def test_the_directory_is_private(root: Path, clock: Clock) -> None:
    write(open_store(root, clock), 0)
    for path in [root, *root.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_least_recently_used_blocks_are_evicted(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    for number in range(98):
        clock.advance(1)
        write(store, number)
    clock.advance(100)
    assert read(store, 0)
    assert store.write(key_of(1), block_of(1)) == 0  # which is a use, too
    write(store, 98)
    assert stored(store, range(98)) == [0, 1, *range(5, 98)]  # 95, without the 3 oldest of the others
    check_integrity(store, root)


def test_of_blocks_used_at_once_no_more_than_necessary_are_evicted(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    write(store, *range(98))
    clock.advance(1)
    write(store, 98)
    assert len(files(root)) == 96
    check_integrity(store, root)


def test_a_large_block_gets_its_room(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    write(store, *range(90))
    assert store.write(key_of(90), block_of(90, 50_000)) > 50_000
    assert read(store, 90, 50_000)
    assert store.use().num_bytes <= CAPACITY
    check_integrity(store, root)


def test_a_use_is_recorded_once_a_minute(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    write(store, 0)
    written_ns = path_of(root, 0).stat().st_mtime_ns
    assert written_ns == clock()
    clock.advance(59)
    assert read(store, 0)
    assert path_of(root, 0).stat().st_mtime_ns == written_ns
    clock.advance(2)
    assert read(store, 0)
    assert path_of(root, 0).stat().st_mtime_ns == clock()


def test_blocks_of_earlier_namespaces_are_evicted_and_their_folders_deleted(root: Path, clock: Clock) -> None:
    old = DirectoryStore(root, "old", CAPACITY, clock=clock)
    write(old, *range(50))
    clock.advance(1)
    store = open_store(root, clock)
    write(store, *range(100, 250))
    assert stored(old, range(50)) == []
    assert not (root / "old").exists()
    check_integrity(store, root)
    write(old, 0)
    assert read(old, 0)


def test_a_store_holds_no_block_larger_than_itself_and_one_as_large(root: Path, clock: Clock) -> None:
    store = open_store(root, clock, FILE_BYTES)
    with pytest.raises(StoreUnavailable, match=f"a block of {FILE_BYTES + 1} bytes is larger than the capacity"):
        store.write(key_of(0), memoryview(bytes(BLOCK_BYTES + 1)))
    for number in range(3):
        write(store, number)
        assert stored(store, range(3)) == [number]


def test_a_block_expires_after_its_last_use(root: Path, clock: Clock) -> None:
    store = open_store(root, clock, ttl_s=600)
    write(store, 0, 1)
    clock.advance(500)
    assert read(store, 0)
    clock.advance(200)
    assert [read(store, 0), read(store, 1)] == [True, False]
    assert [store.count([key_of(0)]), store.count([key_of(1)])] == [1, 0]
    write(store, 1)
    assert read(store, 1)
    check_integrity(store, root)


def test_an_expired_block_is_written_again(root: Path, clock: Clock) -> None:
    """Even if it is not deleted yet: the time to live is shorter than the time between deletions."""
    store = open_store(root, clock, ttl_s=10)
    write(store, 0)
    clock.advance(11)
    assert path_of(root, 0).exists()
    write(store, 0)
    assert read(store, 0)
    check_integrity(store, root)


def test_writes_delete_expired_blocks(root: Path, clock: Clock) -> None:
    store = open_store(root, clock, ttl_s=600)
    write(store, *range(5))
    clock.advance(601)
    write(store, 5)
    assert files(root) == [path_of(root, 5)]
    check_integrity(store, root)
    clock.advance(601)
    write(open_store(root, clock, ttl_s=600), 6)
    assert files(root) == [path_of(root, 6)]


def test_the_own_clock_does_not_jump(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(root, NAMESPACE, CAPACITY, ttl_s=600)
    write(store, 0)
    ten_years_s = 10 * 365 * 86400
    for number, jump_s in enumerate((ten_years_s, -ten_years_s), start=1):
        now_s = time.time()
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda jumped_ns=int((now_s + jump_s) * 1e9): jumped_ns)
            write(store, number)
            assert read(store, 0)
            assert abs(path_of(root, number).stat().st_mtime - now_s) < 60
            assert read(store, number)


def test_blocks_from_the_future_age_like_others(root: Path, clock: Clock) -> None:
    store = open_store(root, clock, ttl_s=600)
    write(store, 0, 1, 2)
    future_ns = clock() + 10**18
    for number in (0, 1):
        os.utime(path_of(root, number), ns=(future_ns, future_ns))
    assert read(store, 0)
    assert path_of(root, 0).stat().st_mtime_ns == clock()
    clock.advance(500)
    store._evictor.scan()
    assert path_of(root, 1).stat().st_mtime_ns == clock()
    clock.advance(500)
    assert [read(store, number) for number in range(3)] == [False, True, False]


def test_blocks_from_the_future_are_evicted(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    write(store, *range(98))
    clock.advance(-(10**8))
    for number in range(98, 300):
        clock.advance(1)
        write(store, number)
    assert stored(store, range(98)) == []
    check_integrity(store, root)


def test_what_is_stored_outlives_the_process(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    write(store, 0)
    store.close()
    store = open_store(root, clock)
    assert read(store, 0)
    (root / ".usage").write_bytes(b"other bytes")
    store = open_store(root, clock)
    check_integrity(store, root)


def test_a_lost_count_is_found_again_by_the_next_write(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    write(store, *range(98))
    (root / ".usage").unlink()
    damage(path_of(root, 50), 0)
    assert not read(store, 50)
    assert store.use().num_blocks == 0
    write(store, 98)
    assert store.use().num_blocks == 98
    for number in range(99, 150):
        write(store, number)
        assert store.use().num_bytes <= CAPACITY
    check_integrity(store, root)


def test_a_start_and_a_scan_remove_what_ended_writers_left(root: Path, clock: Clock) -> None:
    store = open_store(root, clock)
    write(store, 0)
    left = root / ".writing" / "left"
    for act in (lambda: open_store(root, clock), lambda: store._evictor.scan()):
        left.touch()
        act()
        assert not left.exists()


def test_a_scan_leaves_a_write_in_progress_alone(root: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = open_store(root, clock), open_store(root, clock)
    writev = os.writev

    def scan_first(fd: int, views: list[memoryview]) -> int:
        other._evictor.scan()
        return writev(fd, views)

    monkeypatch.setattr(os, "writev", scan_first)
    write(store, 0)
    assert read(store, 0)


def test_all_operations_agree_with_a_model(root: Path, clock: Clock) -> None:
    """A dict of the times of use, in which the store's files may be missing for no other reason than an eviction."""
    draw = random.Random(0)
    stores = [open_store(root, clock), open_store(root, clock)]
    names = {key_of(number).hex(): number for number in range(300)}
    used: dict[int, int] = {}
    before = open_descriptors()
    for _ in range(700):
        clock.advance(draw.choice([0, 1, 61]))
        store, number = draw.choice(stores), int(draw.gauss(0, 60)) % 300
        action = draw.choice(["read", "write", "write", "write", "count", "delete", "damage"])
        if action == "read":
            assert read(store, number) == (number in used)
        elif action == "write":
            assert store.write(key_of(number), block_of(number)) == (0 if number in used else FILE_BYTES)
            left = {names[path.name] for path in files(root)}
            evicted_ns = max((used.pop(each) for each in set(used) - left), default=0)
            assert all(each >= evicted_ns - MINUTE_NS for each in used.values())
            used.setdefault(number, clock())
            assert left == set(used)
            assert len(left) * FILE_BYTES <= CAPACITY
        elif action == "count":
            assert store.count([key_of(number)]) == (number in used)
        elif action == "damage" and number in used:
            damage(path_of(root, number), draw.randrange(FILE_BYTES))
            assert not read(store, number)
            del used[number]
        elif action == "delete" and number in used:
            path_of(root, number).unlink()
            del used[number]
        if action in ("read", "write") and number in used:
            used[number] = clock()
    assert open_descriptors() == before
    assert len(used) > 50


def damage(path: Path, position: int) -> None:
    """Change a bit of a file."""
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
