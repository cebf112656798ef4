"""Store in a directory: of host memory, of a local disk, or of a file system that workers share.

ROOT/                       of this process's user alone (mode 700)
    .usage                  number and size of all blocks
    .evicting               locked by the process that evicts
    .writing/               blocks that are being written, each locked by its writer
    NAMESPACE/ab/ab01...    a block; `ab` is the first byte of its key. A header, then the payload (see `envelope`)

Files are renamed when they are complete and are not synchronised: after a loss of power a block may be torn, which its
checksum shows, or missing. Their time of modification is that of their last use.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from baton.kvtransfer.store.block_files import BlockFiles, SystemFiles
from baton.kvtransfer.store.envelope import HEADER_BYTES, PayloadCheck, check_namespace, hex_name, pack_header
from baton.kvtransfer.store.eviction import WRITING, Evictor, remove_abandoned
from baton.kvtransfer.store.prefix_search import count_prefix
from baton.kvtransfer.store.private_folder import PrivateFolder
from baton.kvtransfer.store.store import Key, StoreUnavailable, StoreUse
from baton.kvtransfer.store.usage import Count, Usage, try_lock

TOUCH_NS = 60 * 10**9  # a block's time is set at most once in it
MIN_SWEEP_S = 60.0  # between two deletions of expired blocks by one process
SWEEPS_PER_TTL = 4
NUM_RENAMES = 3  # attempts, since a scan deletes empty folders
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def steady_clock() -> Callable[[], int]:
    """Return a clock in ns since 1970 that starts with the system's, and does not jump if that is set later."""
    difference_ns = time.time_ns() - time.monotonic_ns()
    return lambda: time.monotonic_ns() + difference_ns


class DirectoryStore:
    """Blocks as files of one directory, which several processes may use, each with the same capacity.

    Blocks of all namespaces share the capacity. The least recently used ones are evicted to 95 % of it. A block's time
    to live starts at its last use.
    """

    def __init__(
        self,
        root: Path,
        namespace: str,
        capacity_bytes: int,
        *,
        name: str = "disk",
        ttl_s: float | None = None,
        clock: Callable[[], int] | None = None,
        on_close: Callable[[], None] = lambda: None,
        files: BlockFiles | None = None,
    ) -> None:
        """Create `root` in an existing directory, and delete what ended writers left. Scan it if it has no count.

        `clock`: in ns. `on_close` runs at the end. `files`: copies blocks (default: by the kernel), and is closed.
        Raises StoreUnavailable, ValueError for an invalid namespace.
        """
        self._name = name
        self._namespace = check_namespace(namespace)
        self._capacity_bytes = capacity_bytes
        self._now_ns = clock or steady_clock()
        self._on_close = on_close
        self._files = files or SystemFiles()
        self._folder = PrivateFolder(root)
        self._usage = Usage(self._folder)
        self._evictor = Evictor(self._folder, self._usage, capacity_bytes, ttl_s, self._now_ns)
        self._sweep_ns = None if ttl_s is None else int(max(MIN_SWEEP_S, ttl_s / SWEEPS_PER_TTL) * 10**9)
        self._next_sweep_ns = 0
        with self._folder.open(create=True) as folder:
            remove_abandoned(folder)
        if self._usage.read() is None:
            self._evictor.scan()

    @property
    def name(self) -> str:
        """Name of the tier."""
        return self._name

    def count(self, keys: Sequence[Key]) -> int:
        """Return how many keys, from the first on, seem to have a file that has not expired; see `count_prefix`."""
        names = [hex_name(key) for key in keys]
        with suppress(FileNotFoundError), self._folder.open(self._namespace) as folder:

            def first_missing(places: Sequence[int]) -> int:
                missing = (at for at, place in enumerate(places) if not self._has(folder, names[place]))
                return next(missing, len(places))

            return count_prefix(len(names), first_missing)
        return 0

    def has(self, keys: Sequence[Key]) -> list[bool]:
        """Return for each key whether it seems to have a file that has not expired."""
        with suppress(FileNotFoundError), self._folder.open(self._namespace) as folder:
            return [self._has(folder, hex_name(key)) for key in keys]
        return [False] * len(keys)

    def read(self, key: Key, into: memoryview) -> bool:
        """Read a block into a buffer of exactly its size. A damaged one is deleted and counts as missing."""
        name, into = hex_name(key), into.cast("B")
        with suppress(FileNotFoundError), self._folder.open(self._namespace, name[:2]) as folder:
            try:
                fd = os.open(name, READ, dir_fd=folder)
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                self._remove(folder, name)
                return False
            try:
                status = os.fstat(fd)
                if self._evictor.is_expired(status.st_mtime_ns):
                    return False
                if not self._read_intact(fd, status, key, into):
                    self._remove(folder, name, status)
                    return False
                self._touch(folder, name, status)
            finally:
                os.close(fd)
            return True
        return False

    def write(self, key: Key, block: memoryview) -> int:
        """Store a block, unless it is there; return the number of bytes that were written.

        Returns 0, too, if the store is full while another process or thread evicts. Raises StoreUnavailable, also for a
        block that is larger than the capacity.
        """
        name, block = hex_name(key), block.cast("B")
        size = HEADER_BYTES + len(block)
        if size > self._capacity_bytes:
            raise StoreUnavailable(f"a block of {size} bytes is larger than the capacity, {self._capacity_bytes} bytes")
        self._sweep()
        found = self._find(name)
        if found is not None and found.st_size == size and not self._evictor.is_expired(found.st_mtime_ns):
            return 0
        if not self._evictor.make_room(size):
            return 0
        if not self._write_file(name, pack_header(self._namespace, key, block), block):
            return 0
        self._usage.add(Count(0, size - found.st_size) if found else Count(1, size))
        return size

    def use(self) -> StoreUse:
        """Return what the directory holds, of all namespaces."""
        count = self._usage.read() or Count()
        return StoreUse(count.num_blocks, count.num_bytes, self._capacity_bytes)

    def clear(self) -> int:
        """Delete all blocks of the namespace, and return their number."""
        return self._evictor.remove_all(self._namespace)

    def close(self) -> None:
        """Release the directory; the blocks stay, except in host memory that no other process uses."""
        self._evictor.close()
        self._files.close()
        self._on_close()

    def _has(self, folder: int, name: str) -> bool:
        try:
            status = os.stat(f"{name[:2]}/{name}", dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return stat.S_ISREG(status.st_mode) and not self._evictor.is_expired(status.st_mtime_ns)

    def _read_intact(self, fd: int, status: os.stat_result, key: Key, into: memoryview) -> bool:
        if not stat.S_ISREG(status.st_mode) or status.st_size != HEADER_BYTES + len(into):
            return False
        header = bytearray(HEADER_BYTES)
        check = PayloadCheck(self._namespace, key)
        for part in self._files.read(fd, header, into):
            check.add(part)
        return check.is_intact(header)

    def _touch(self, folder: int, name: str, status: os.stat_result) -> None:
        now_ns = self._now_ns()
        if abs(now_ns - status.st_mtime_ns) > TOUCH_NS:
            with suppress(OSError):  # deleted meanwhile, or on a read-only file system
                os.utime(name, ns=(now_ns, now_ns), dir_fd=folder, follow_symlinks=False)

    def _remove(self, folder: int, name: str, status: os.stat_result | None = None) -> None:
        with suppress(OSError, StoreUnavailable):  # it stays damaged, and missing
            os.unlink(name, dir_fd=folder)
            if status is not None and stat.S_ISREG(status.st_mode):
                self._usage.add(Count(-1, -status.st_size))

    def _find(self, name: str) -> os.stat_result | None:
        """Return the status of a block's file, and count this as a use; None if there is no such file."""
        with suppress(FileNotFoundError), self._folder.open(self._namespace, name[:2]) as folder:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                self._touch(folder, name, status)
                return status
        return None

    def _sweep(self) -> None:
        """Delete expired blocks, at the first write and then now and then."""
        now_ns = self._now_ns()
        if self._sweep_ns is not None and now_ns >= self._next_sweep_ns:
            self._next_sweep_ns = now_ns + self._sweep_ns
            self._evictor.scan_soon()

    def _write_file(self, name: str, header: bytes, payload: memoryview) -> bool:
        """Write a file and rename it; False if it was deleted meanwhile."""
        with self._folder.open(WRITING, create=True) as writing:
            temporary = secrets.token_hex(8)
            fd = os.open(temporary, CREATE, 0o600, dir_fd=writing)
            try:
                try_lock(fd)
                self._files.write(fd, header, payload)
                now_ns = self._now_ns()
                os.utime(fd, ns=(now_ns, now_ns))
                return any(self._rename(writing, temporary, name) for _ in range(NUM_RENAMES))
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=writing)
                raise
            finally:
                os.close(fd)

    def _rename(self, writing: int, temporary: str, name: str) -> bool:
        with self._folder.open(self._namespace, name[:2], create=True) as folder:
            try:
                os.rename(temporary, name, src_dir_fd=writing, dst_dir_fd=folder)
            except FileNotFoundError:
                return False
            return True
