"""The store in a directory, when the file system fails or other programs change what is in it."""

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from baton.kvtransfer.store.directory import DirectoryStore
from baton.kvtransfer.store.envelope import HEADER_BYTES
from baton.kvtransfer.store.store import StoreUnavailable
from tests.unit.kvtransfer.store.store_rig import (
    BLOCK_BYTES,
    FILE_BYTES,
    NAMESPACE,
    block_of,
    check_integrity,
    key_of,
    open_descriptors,
    path_of,
    read,
    write,
)

CAPACITY = 100 * FILE_BYTES
NOBODY = 65534


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def store(root: Path) -> Iterator[DirectoryStore]:
    """A store with one block, which leaks no descriptor."""
    store = DirectoryStore(root, NAMESPACE, CAPACITY)
    write(store, 0)
    before = open_descriptors()
    yield store
    assert open_descriptors() == before


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory of a user whom permissions bind, which this process has as its effective one meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(name, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(name)
        finally:
            if is_root:
                os.seteuid(0)
            for path in Path(name).rglob("*"):
                if path.is_dir():
                    path.chmod(0o700)


def one_line(error: BaseException) -> str:
    assert "\n" not in str(error)
    return str(error)


def truncate(path: Path) -> None:
    os.truncate(path, FILE_BYTES // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def make_zeros(path: Path) -> None:
    path.write_bytes(bytes(FILE_BYTES))


def link_to_itself_elsewhere(path: Path) -> None:
    """A link to an intact copy, which is not followed all the same."""
    outside = path.parents[3] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: list[Callable[[Path], None]] = [
    truncate,
    empty,
    extend,
    flip,
    make_zeros,
    Path.unlink,
    link_to_itself_elsewhere,
    make_fifo,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_file_is_a_miss_and_written_again(
    store: DirectoryStore, root: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(path_of(root, 0))
    assert not read(store, 0)
    assert not os.path.lexists(path_of(root, 0))
    assert store.write(key_of(0), block_of(0)) == FILE_BYTES
    assert read(store, 0)
    assert not path_of(root, 0).is_symlink()
    store._evictor.scan()
    check_integrity(store, root)


def test_the_count_follows_damaged_blocks(store: DirectoryStore, root: Path) -> None:
    write(store, 1)
    flip(path_of(root, 0))
    assert not read(store, 0)
    check_integrity(store, root)
    write(store, 0)
    truncate(path_of(root, 1))
    write(store, 1)
    assert store.use().num_blocks == 2


@pytest.mark.parametrize("change", [truncate, empty, extend, link_to_itself_elsewhere, make_fifo])
def test_a_file_that_cannot_be_the_block_is_replaced_by_a_write(
    store: DirectoryStore, root: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    change(path_of(root, 0))
    assert store.write(key_of(0), block_of(0)) == FILE_BYTES
    assert read(store, 0)
    if change is link_to_itself_elsewhere:
        assert (tmp_path / "outside").stat().st_size == FILE_BYTES


def test_a_folder_in_the_place_of_a_block_is_a_miss(store: DirectoryStore, root: Path) -> None:
    path_of(root, 0).unlink()
    path_of(root, 0).mkdir()
    assert not read(store, 0)
    assert store.count([key_of(0)]) == 0
    store._evictor.scan()
    assert store.use().num_blocks == 0
    with pytest.raises(StoreUnavailable, match="directory") as caught:
        write(store, 0)
    one_line(caught.value)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_linked_folder_is_not_followed(store: DirectoryStore, root: Path, tmp_path: Path, depth: int) -> None:
    folder = [root, root / NAMESPACE, path_of(root, 0).parent][depth]
    folder.rename(tmp_path / "outside")
    folder.symlink_to(tmp_path / "outside")
    before = sorted((tmp_path / "outside").rglob("*"))
    for act in (lambda: read(store, 0), lambda: write(store, 0)):
        with pytest.raises(StoreUnavailable, match="or it is a link, which is not followed; remove it") as caught:
            act()
        assert folder.name in one_line(caught.value)
    assert sorted((tmp_path / "outside").rglob("*")) == before


@pytest.mark.parametrize("name", [".writing", ".usage", ".evicting"])
def test_no_file_of_its_own_is_a_link(store: DirectoryStore, root: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir() if name == ".writing" else outside.write_bytes(b"precious")
    path = root / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(outside)
    act = store._evictor.scan if name == ".evicting" else lambda: write(store, 1)
    with pytest.raises(StoreUnavailable, match="remove it"):
        act()
    assert list(outside.iterdir()) == [] if outside.is_dir() else outside.read_bytes() == b"precious"


def test_odd_files_where_blocks_are_written_do_no_harm(store: DirectoryStore, root: Path, tmp_path: Path) -> None:
    (root / ".writing" / "folder").mkdir()
    (root / ".writing" / "link").symlink_to(tmp_path)
    os.mkfifo(root / ".writing" / "fifo")
    write(DirectoryStore(root, NAMESPACE, CAPACITY), 1)
    assert [read(store, 0), read(store, 1)] == [True, True]
    assert tmp_path.is_dir()


def test_other_files_are_left_alone(store: DirectoryStore, root: Path) -> None:
    others = [root / "notes.txt", root / NAMESPACE / "notes.txt", path_of(root, 0).parent / "notes.txt"]
    for other in others:
        other.write_text("mine")
    write(store, *range(1, 150))
    assert [other.read_text() for other in others] == ["mine"] * 3


def test_a_directory_that_was_deleted_is_created_again(store: DirectoryStore, root: Path) -> None:
    shutil.rmtree(root)
    assert not read(store, 0)
    assert store.count([key_of(0)]) == store.use().num_blocks == 0
    write(store, 0)
    assert read(store, 0)
    shutil.rmtree(root / NAMESPACE)
    write(store, 0)
    store._evictor.scan()
    check_integrity(store, root)


def test_folders_that_others_delete_all_the_time_are_a_miss_or_unavailable(store: DirectoryStore, root: Path) -> None:
    """As by the scans of other processes, or by an administrator."""
    is_over = threading.Event()

    def delete() -> None:
        while not is_over.is_set():
            shutil.rmtree(root, ignore_errors=True)

    thread = threading.Thread(target=delete)
    thread.start()
    before = open_descriptors()
    for number in range(300):
        with suppress(StoreUnavailable):
            store.write(key_of(number), block_of(number))
        with suppress(StoreUnavailable):
            read(store, number)
        with suppress(StoreUnavailable):
            store._evictor.scan()
        with suppress(StoreUnavailable):
            store.count([key_of(number)])
        with suppress(StoreUnavailable):
            store.use()
    is_over.set()
    thread.join()
    assert open_descriptors() <= before
    write(store, 0)
    assert read(store, 0)


def test_a_missing_parent_is_not_created(tmp_path: Path, store: DirectoryStore, root: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"missing: no such directory; create it") as caught:
        DirectoryStore(tmp_path / "missing" / "root", NAMESPACE, CAPACITY)
    one_line(caught.value)
    with pytest.raises(StoreUnavailable, match="or it is a link"):
        DirectoryStore(path_of(root, 0), NAMESPACE, CAPACITY)


def test_a_full_disk_is_reported_and_leaves_nothing(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev = os.writev
    with monkeypatch.context() as patch:

        def half(fd: int, views: list[memoryview]) -> int:
            if len(views) == 1:  # the second call
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return writev(fd, [views[0], views[1][: BLOCK_BYTES // 2]])

        patch.setattr(os, "writev", half)
        with pytest.raises(StoreUnavailable, match="No space left on device; free some space, or lower") as caught:
            write(store, 1)
    assert str(root) in one_line(caught.value)
    check_integrity(store, root)
    assert read(store, 0)
    write(store, 1)
    check_integrity(store, root)


def test_short_reads_and_writes_continue(store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev, preadv = os.writev, os.preadv
    monkeypatch.setattr(os, "writev", lambda fd, views: writev(fd, [views[0][:7]]))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: preadv(fd, [views[0][:7]], at))
    write(store, 1)
    assert [read(store, 0), read(store, 1)] == [True, True]


@pytest.mark.parametrize("part_bytes", [64, 100, 999, BLOCK_BYTES])
def test_each_part_of_a_block_counts_and_their_order(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr("baton.kvtransfer.store.block_files.PART_BYTES", part_bytes)
    assert read(store, 0)
    intact = path_of(root, 0).read_bytes()
    for start in range(HEADER_BYTES, FILE_BYTES, part_bytes):
        for place in {start, min(start + part_bytes, FILE_BYTES) - 1}:
            path_of(root, 0).write_bytes(intact[:place] + bytes([intact[place] ^ 1]) + intact[place + 1 :])
            assert not read(store, 0)
    first, second = intact[HEADER_BYTES : HEADER_BYTES + 100], intact[HEADER_BYTES + 100 : HEADER_BYTES + 200]
    path_of(root, 0).write_bytes(intact[:HEADER_BYTES] + second + first + intact[HEADER_BYTES + 200 :])
    assert not read(store, 0)
    path_of(root, 0).write_bytes(intact)
    assert read(store, 0)


def test_a_failing_disk_is_reported(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        read(store, 0)


def test_a_file_system_without_locks_is_reported(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(StoreUnavailable, match="must support flock"):
        write(store, 1)


def test_a_read_only_directory_can_be_read(unprivileged: Path) -> None:
    root = unprivileged / "root"
    store = DirectoryStore(root, NAMESPACE, CAPACITY)
    write(store, 0)
    os.utime(path_of(root, 0), (1, 1))
    for path in [*root.rglob("*"), root]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    assert read(store, 0)
    with pytest.raises(StoreUnavailable, match="Permission denied; choose a directory of this user") as caught:
        write(store, 1)
    one_line(caught.value)
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        DirectoryStore(root.parent / "root" / "other", NAMESPACE, CAPACITY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_a_directory_of_another_user_is_refused(store: DirectoryStore, root: Path) -> None:
    os.chown(root, NOBODY, NOBODY)
    for act in (lambda: DirectoryStore(root, NAMESPACE, CAPACITY), lambda: read(store, 0), lambda: write(store, 1)):
        with pytest.raises(StoreUnavailable, match="it belongs to the user 65534, not to 0; choose another") as caught:
            act()
        one_line(caught.value)


def test_a_directory_that_others_may_enter_is_refused(root: Path) -> None:
    root.mkdir()
    root.chmod(0o755)
    with pytest.raises(StoreUnavailable, match=r"other users may enter it \(mode 755\); run chmod 700 on it"):
        DirectoryStore(root, NAMESPACE, CAPACITY)
