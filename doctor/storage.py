"""Checks of what serving reads besides memory: the directory of offloaded weights, and stores of KV."""

import errno
import mmap
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from baton.doctor.finding import Finding, failure, ok, warning
from baton.engine.offload.old_files import stored_weights
from baton.engine.offload.unit_reads import THREADS
from baton.extras import MissingExtra
from baton.kvtransfer.store.factory import open_store
from baton.kvtransfer.store.store import KVStore, StoreUnavailable
from baton.settings.store_directory import store_directory
from baton.settings.values import OptionError

GB = 1e9
CHUNK_BYTES = 8 << 20
NUM_CHUNKS = 32
SLOW_BYTES_PER_S = 0.5e9  # below it is no local SSD
BLOCK_BYTES = 1 << 20
NUM_BLOCKS = 16
MIN_FREE_BYTES = 1 << 30
UNBOUNDED = 1 << 60  # capacity of the checked store, which must evict nothing
EXTENSIONS = (".safetensors", ".gguf")


@dataclass(frozen=True, slots=True)
class DirectReads:
    """How a directory's file system reads without the page cache."""

    is_direct: bool
    bytes_per_s: float


def check_weights_directory(directory: Path, model: Path | None = None) -> list[Finding]:
    """Check a directory for --weights-offload-dir: space, direct reads, and their speed.

    `model`: directory or file of a checkpoint. Writes a file of 256 MiB and deletes it.
    """
    try:
        model_bytes = 0 if model is None else _checkpoint_bytes(model)
        free_bytes = shutil.disk_usage(directory).free
        files = [each for each in stored_weights(directory) if each.path.suffix == ".weights"]
        if free_bytes < CHUNK_BYTES * NUM_CHUNKS:
            return [_space(directory, free_bytes, model_bytes)]
        reads = measure_direct_reads(directory)
    except OSError as error:
        found = f"{error.filename or directory}: {error.strerror}"
        return [failure("weights-directory", found, "choose a directory on a local disk that can be written")]
    findings = [_space(directory, free_bytes, model_bytes), _directness(directory, reads)]
    needs = {each.path.stem: each.num_bytes for each in files}
    if model is not None and model_bytes:
        needs[str(model)] = model_bytes
    elif model is not None:
        found = f"{model} has no file of weights, so that its size is not compared"
        findings.append(warning("weights-checkpoint", found, f"name a checkpoint with {' or '.join(EXTENSIONS)} files"))
    return [*findings, _speed(directory, reads.bytes_per_s, needs)]


def _space(directory: Path, free_bytes: int, model_bytes: int) -> Finding:
    found = f"{directory} has {free_bytes / GB:.2f} GB free"
    if model_bytes:
        found += f"; the checkpoint has {model_bytes / GB:.2f} GB, and its weights about as much without --quantization"
    if free_bytes >= max(model_bytes, MIN_FREE_BYTES):
        return ok("weights-space", found)
    remedy = "free some space (baton cache weights shows old files), or set --weights-offload-dir on another disk"
    return warning("weights-space", found, remedy)


def _directness(directory: Path, reads: DirectReads) -> Finding:
    if reads.is_direct:
        return ok("weights-direct-reads", f"{directory} is read without the page cache")
    return warning(
        "weights-direct-reads",
        f"the file system of {directory} has no direct reads (O_DIRECT): the page cache takes the memory",
        "choose a directory on a local disk with ext4 or XFS",
    )


def _speed(directory: Path, bytes_per_s: float, needs: dict[str, int]) -> Finding:
    """Compare the measured rate with the bytes that a token needs at most: all weights, if none stay in memory."""
    found = f"{directory}: {bytes_per_s / GB:.2f} GB/s"
    for name, num_bytes in list(needs.items())[:8]:
        seconds = num_bytes / bytes_per_s
        found += f"; a token of {name} reads at most {num_bytes / GB:.2f} GB, in {seconds:.2g} s"
    if bytes_per_s >= SLOW_BYTES_PER_S:
        return ok("weights-read-speed", found)
    return warning("weights-read-speed", found, "a local NVMe disk reads 1 to 14 GB/s; each step waits for the reads")


def measure_direct_reads(directory: Path) -> DirectReads:
    """Read a file of 256 MiB as a worker reads weights, and return the rate. Raises OSError."""
    with _scratch_file(directory) as path:
        flags = os.O_RDONLY | os.O_CLOEXEC
        try:
            fd, is_direct = os.open(path, flags | os.O_DIRECT), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            fd, is_direct = os.open(path, flags), False
        try:
            with ThreadPoolExecutor(THREADS) as threads:
                begun_s = time.perf_counter()
                sizes = list(threads.map(partial(_read_chunk, fd), range(NUM_CHUNKS)))
                took_s = time.perf_counter() - begun_s
        finally:
            os.close(fd)
    return DirectReads(is_direct, sum(sizes) / took_s)


def _read_chunk(fd: int, number: int) -> int:
    with mmap.mmap(-1, CHUNK_BYTES) as buffer:
        return os.preadv(fd, [buffer], number * CHUNK_BYTES)


@contextmanager
def _scratch_file(directory: Path) -> Iterator[str]:
    fd, path = tempfile.mkstemp(prefix="baton-doctor-", dir=directory)
    try:
        with os.fdopen(fd, "wb", buffering=0) as file:
            for _ in range(NUM_CHUNKS):
                file.write(os.urandom(BLOCK_BYTES) * (CHUNK_BYTES // BLOCK_BYTES))
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield path
    finally:
        os.unlink(path)


def _checkpoint_bytes(model: Path) -> int:
    files = [model] if model.is_file() else [each for each in model.iterdir() if each.suffix in EXTENSIONS]
    return sum(each.stat().st_size for each in files)


def check_kv_store(place: str) -> Finding:
    """Write, read and delete some blocks in a store, in a new namespace. `place`: as --kv-store."""
    try:
        store = open_store(place, f"baton-doctor-{uuid.uuid4().hex}", UNBOUNDED)
    except (OptionError, StoreUnavailable, MissingExtra) as error:
        return failure("kv-store-unusable", str(error), "workers with this --kv-store or --kv-disk do not start")
    try:
        found = _measured(store)
    except StoreUnavailable as error:
        return failure("kv-store-unusable", str(error), "workers would compute everything, and try it again at times")
    finally:
        store.close()
    directory = store_directory(place)
    if directory is None:
        return ok("kv-store", found)
    free_bytes = shutil.disk_usage(directory).free
    found = f"{directory}: {found} (recent blocks from the page cache); {free_bytes / GB:.2f} GB free"
    if free_bytes >= MIN_FREE_BYTES:
        return ok("kv-store", found)
    return warning("kv-store", found, "free some space; a store on a full disk is skipped")


def _measured(store: KVStore) -> str:
    blocks = {os.urandom(16): memoryview(os.urandom(BLOCK_BYTES)) for _ in range(NUM_BLOCKS)}
    into = memoryview(bytearray(BLOCK_BYTES))
    try:
        begun_s = time.perf_counter()
        for key, block in blocks.items():
            store.write(key, block)
        written_s = time.perf_counter()
        for key, block in blocks.items():
            if not store.read(key, into) or into != block:
                raise StoreUnavailable(f"the {store.name} store has not returned a block that it had just stored")
        read_s = time.perf_counter()
        store.count(list(blocks))
        looked_up_s = time.perf_counter()
    finally:
        with suppress(StoreUnavailable):  # such as objects behind NIXL, which expire by the bucket's rules
            store.clear()
    num_bytes = NUM_BLOCKS * BLOCK_BYTES / GB
    return (
        f"{store.name}, blocks of 1 MiB: written at {num_bytes / (written_s - begun_s):.2f} GB/s, read at "
        f"{num_bytes / (read_s - written_s):.2f} GB/s; a lookup takes {1e3 * (looked_up_s - read_s):.1f} ms"
    )
