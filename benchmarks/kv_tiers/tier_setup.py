"""The stores of a Baton server, and the time in which one thread reads what is in them."""

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import redis

from baton.deployment.local.redis_server import PrivateRedis

TIERS = ("host", "disk", "nixl-posix", "redis")


@dataclass(frozen=True, slots=True)
class TierSetup:
    """A tier of the server that is measured."""

    flags: Sequence[str]
    drop_caches: Callable[[], None]
    read_all: Callable[[], float]  # reads every stored block once with one thread, and returns the bytes per second


@asynccontextmanager
async def tier_setup(tier: str, directory: Path, num_bytes: int) -> AsyncIterator[TierSetup]:
    """Prepare a tier with room for `num_bytes`."""
    if tier == "redis":
        server = PrivateRedis(directory / "redis.log")
        await server.start()
        try:
            yield TierSetup(("--kv-store", server.url), _no_files, lambda: _read_redis(server.url))
        finally:
            await server.end()
    elif tier in ("disk", "nixl-posix"):
        root = directory / tier
        root.mkdir()
        flags = ("--kv-disk", str(root), "--kv-disk-bytes", str(num_bytes))
        if tier != "disk":
            flags = ("--kv-store", f"{tier}://{root}", "--kv-store-bytes", str(num_bytes))
        yield TierSetup(flags, lambda: drop_cached(_block_files(root)), lambda: _read_files(root))
    else:
        shm = Path("/dev/shm")
        yield TierSetup(("--kv-host-memory-bytes", str(num_bytes)), _no_files, lambda: _read_files(shm))


def _no_files() -> None:
    """Return at once: the tier has no files."""


def _block_files(root: Path) -> list[Path]:
    pattern = "baton-kv-*/*/??/*" if root == Path("/dev/shm") else "baton-kv/*/??/*"
    return [path for path in root.glob(pattern) if path.is_file() and not path.name.startswith(".")]


def drop_cached(paths: Iterable[Path]) -> None:
    """Write files to the disk, and drop them from the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def _read_files(root: Path) -> float:
    paths = _block_files(root)
    sizes = [path.stat().st_size for path in paths]
    memory = np.ones(sum(sizes), np.uint8)  # in use, so that no page is created while it is read into
    start = 0
    begun_s = time.perf_counter()
    for path, size in zip(paths, sizes, strict=True):
        with path.open("rb", buffering=0) as file:
            file.readinto(memory[start : start + size].data)
        start += size
    return start / (time.perf_counter() - begun_s)


def _read_redis(url: str) -> float:
    client = redis.Redis.from_url(url)
    keys = list(client.scan_iter(count=1000))
    begun_s = time.perf_counter()
    num_bytes = sum(len(client.get(key) or b"") for key in keys)  # type: ignore[arg-type]
    return num_bytes / (time.perf_counter() - begun_s)
