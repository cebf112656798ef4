"""Scan and eviction of a folder of blocks, in one process and thread at a time."""

import os
import re
import stat
import threading
from array import array
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from baton.kvtransfer.store.envelope import NAMESPACE
from baton.kvtransfer.store.private_folder import FOLDER, PrivateFolder
from baton.kvtransfer.store.store import StoreUnavailable
from baton.kvtransfer.store.usage import Count, Usage, try_lock

LOCK_FILE = ".evicting"
WRITING = ".writing"  # folder of blocks that are being written
LIMIT = 63 / 64  # of the capacity, above which one process evicts while others may use the rest
TARGET = 0.95  # of the capacity, after an eviction
MAX_FUTURE_NS = 60 * 10**9  # a file's time may be ahead of ours by this, because of another host's clock
MAX_BLOCKS_AT_ONCE = 10_000  # scanned within a write, which takes some 0.1 s
BATCH = 64  # evicted blocks that are subtracted from the count at once
FAN = re.compile(r"[0-9a-f]{2}", re.ASCII)
BLOCK = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block's file, in an open folder."""

    folder: int  # descriptor
    name: str
    used_ns: int
    num_bytes: int

    def remove(self) -> bool:
        """Delete the file; False if it was deleted already."""
        try:
            os.unlink(self.name, dir_fd=self.folder)
        except FileNotFoundError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Victims:
    """The blocks to evict: all that were not used since `last_use_ns`, and `last_bytes` of those used just then."""

    last_use_ns: int
    last_bytes: int


class Evictor:
    """Deletes expired blocks, and the least recently used ones if a folder holds more than its capacity.

    Both are of all namespaces: those of earlier models and layouts age like the others.
    """

    def __init__(
        self, folder: PrivateFolder, usage: Usage, capacity_bytes: int, ttl_s: float | None, now_ns: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._usage = usage
        self._capacity_bytes = capacity_bytes
        self._ttl_ns = None if ttl_s is None else int(ttl_s * 10**9)
        self._now_ns = now_ns
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: StoreUnavailable | None = None  # of the thread

    def is_expired(self, used_ns: int) -> bool:
        """Return whether a block that was last used then has outlived the time to live."""
        return self._ttl_ns is not None and self._now_ns() - used_ns > self._ttl_ns

    def make_room(self, num_bytes: int) -> bool:
        """Return whether so many bytes may be added; begin an eviction if one is due. Raises StoreUnavailable."""
        count = self._usage.read()
        if count is None or count.num_bytes + num_bytes > int(self._capacity_bytes * LIMIT):
            self.scan_soon(num_bytes)
            count = self._usage.read() or Count()
        return count.num_bytes + num_bytes <= self._capacity_bytes

    def scan_soon(self, room_bytes: int = 0) -> None:
        """Scan at once, or in a thread if the folder has so many blocks that it takes long.

        Raises StoreUnavailable, also for the last scan in a thread.
        """
        count = self._usage.read() or Count()
        if count.num_blocks <= MAX_BLOCKS_AT_ONCE:
            self.scan(room_bytes)
            return
        with self._mutex:
            error, self._error = self._error, None
            if error is not None:
                raise error
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, args=(room_bytes,), name="kv-evict", daemon=True)
                self._thread.start()

    def remove_all(self, namespace: str) -> int:
        """Delete all blocks of a namespace, and return their number. Raises StoreUnavailable."""
        removed = Count()
        try:
            with self._folder.open(create=True) as root, closing(_blocks(root, namespace)) as blocks:
                for block in blocks:
                    if block.remove():
                        removed = removed.plus(Count(1, block.num_bytes))
        finally:
            self._usage.add(Count().minus(removed))
        return removed.num_blocks

    def close(self) -> None:
        """Wait for the end of a scan."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, room_bytes: int) -> None:
        try:
            self.scan(room_bytes)
        except StoreUnavailable as error:
            self._error = error

    def scan(self, room_bytes: int = 0) -> None:
        """Correct the count, delete expired blocks and, if the folder is full, evict to 95 % and for so much room.

        No-op if another process or thread does it now. Raises StoreUnavailable.
        """
        with self._folder.open(create=True) as root, _locked(root) as is_locked:
            if not is_locked:
                return
            remove_abandoned(root)
            counted = self._usage.read()  # read first: what is added during the scan must stay
            used_ns, sizes = array("q"), array("q")
            with closing(_blocks(root)) as blocks:
                for block in blocks:
                    if self.is_expired(block.used_ns):
                        block.remove()
                    else:
                        used_ns.append(self._corrected(block))
                        sizes.append(block.num_bytes)
            total = Count(len(sizes), sum(sizes))
            if counted is None:
                self._usage.set(total)
            else:
                self._usage.add(total.minus(counted))
            if total.num_bytes + room_bytes > int(self._capacity_bytes * LIMIT):
                target_bytes = min(int(self._capacity_bytes * TARGET), self._capacity_bytes - room_bytes)
                if total.num_bytes > target_bytes:
                    self._evict(root, _victims(used_ns, sizes, total.num_bytes - target_bytes))

    def _evict(self, root: int, victims: Victims) -> None:
        evicted, last_bytes = Count(), victims.last_bytes
        with closing(_blocks(root)) as blocks:
            for block in blocks:
                is_last = block.used_ns == victims.last_use_ns and last_bytes > 0
                if (is_last or block.used_ns < victims.last_use_ns) and block.remove():
                    last_bytes -= block.num_bytes if is_last else 0
                    evicted = evicted.plus(Count(1, block.num_bytes))
                if evicted.num_blocks == BATCH:
                    self._usage.add(Count().minus(evicted))
                    evicted = Count()
        self._usage.add(Count().minus(evicted))

    def _corrected(self, block: StoredBlock) -> int:
        """Return when a block was used. One from the future counts as used now; it would not age until then."""
        now_ns = self._now_ns()
        if block.used_ns <= now_ns + MAX_FUTURE_NS:
            return block.used_ns
        with suppress(FileNotFoundError):
            os.utime(block.name, ns=(now_ns, now_ns), dir_fd=block.folder, follow_symlinks=False)
        return now_ns


def remove_abandoned(root: int) -> None:
    """Delete the files of writers that have ended: a writer holds a lock on its file."""
    with suppress(FileNotFoundError), _opened(root, WRITING) as folder:
        for name in os.listdir(folder):
            with suppress(OSError):
                fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                try:
                    if try_lock(fd):
                        os.unlink(name, dir_fd=folder)
                finally:
                    os.close(fd)


def _blocks(root: int, only: str | None = None) -> Generator[StoredBlock]:
    """Yield the blocks of all namespaces, or `only` of one, and delete empty folders. Other files are ignored."""
    for namespace in _folders(root, NAMESPACE) if only is None else (only,):
        with suppress(FileNotFoundError), _opened(root, namespace) as outer:
            for fan in _folders(outer, FAN):
                with suppress(FileNotFoundError), _opened(outer, fan) as folder:
                    yield from _blocks_in(folder)
                _remove_if_empty(outer, fan)
        _remove_if_empty(root, namespace)


def _blocks_in(folder: int) -> Generator[StoredBlock]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if BLOCK.fullmatch(entry.name):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        yield StoredBlock(folder, entry.name, status.st_mtime_ns, status.st_size)


def _remove_if_empty(parent: int, name: str) -> None:
    with suppress(OSError):
        os.rmdir(name, dir_fd=parent)


def _victims(used_ns: "array[int]", sizes: "array[int]", excess_bytes: int) -> Victims:
    """Return the least recently used blocks, of `excess_bytes` together. NumPy sorts without Python's lock."""
    times, num_bytes = np.frombuffer(used_ns, np.int64), np.frombuffer(sizes, np.int64)
    order = np.argsort(times)
    last = min(int(np.searchsorted(np.cumsum(num_bytes[order]), excess_bytes)), len(order) - 1)
    last_use_ns = int(times[order[last]])
    return Victims(last_use_ns, excess_bytes - int(num_bytes[times < last_use_ns].sum()))


def _folders(parent: int, pattern: re.Pattern[str]) -> list[str]:
    with os.scandir(parent) as entries:
        return [each.name for each in entries if pattern.fullmatch(each.name) and each.is_dir(follow_symlinks=False)]


@contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    fd = os.open(name, FOLDER, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _locked(root: int) -> Iterator[bool]:
    fd = os.open(LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root)
    try:
        yield try_lock(fd)
    finally:
        os.close(fd)
