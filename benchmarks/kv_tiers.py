"""First tokens of prompts whose KV is in a store below the KV cache, compared with computing them.

    python -m benchmarks.kv_tiers [--json FILE] [--repeats N] [--model DIR] [--tokens N] [--tier NAME ...]

One worker computes and decodes. Its KV cache holds one prompt, so each prompt evicts the one before it. In turn, a new
prompt is computed, and the one before the last is sent again and comes from the store; both TTFTs are medians. Files of
the disk are dropped from the page cache before they are read. The limit is the time in which one thread reads the same
bytes from the store into memory that is in use (of host memory by a copy, of a disk, also behind NIXL, by reads without
the page cache, of Redis by GETs), plus the time that the tokens which are not stored, at least the last one, take at
the rate at which the whole prompt is computed.
"""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import numpy as np
import redis

from baton.deployment.local.redis_server import PrivateRedis
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.kv.dtype import kv_bytes_per_token
from benchmarks.load import RequestTimes, run_wave
from benchmarks.report import Report
from benchmarks.serve import random_model
from benchmarks.server import served

NUM_OUTPUT_TOKENS = 4
BLOCK_SIZE = 16
SPARE_BLOCKS = 6  # of the KV cache, in which the beginning of the former prompt may be left
STORED = "x-baton-stored-tokens"
TIERS = ("host", "disk", "nixl-posix", "redis")
NAMES = {"nixl-posix": "shared"}  # of tiers in responses, if they differ
COLUMNS = ("tier", "prompt", "MB", "computed TTFT ms", "fetched TTFT ms", "times as fast", "limit ms",
           "limit / fetched")  # fmt: skip


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
            yield TierSetup(("--kv-store", server.url), _nothing, lambda: _read_redis(server.url))
        finally:
            await server.end()
    elif tier in ("disk", "nixl-posix"):
        root = directory / tier
        root.mkdir()
        flags = ("--kv-disk", str(root), "--kv-disk-bytes", str(num_bytes))
        if tier != "disk":
            flags = ("--kv-store", f"{tier}://{root}", "--kv-store-bytes", str(num_bytes))
        yield TierSetup(flags, lambda: _drop(root), lambda: _read_files(root))
    else:
        shm = Path("/dev/shm")
        yield TierSetup(("--kv-host-memory-bytes", str(num_bytes)), _nothing, lambda: _read_files(shm))


def _nothing() -> None:
    pass


def _block_files(root: Path) -> list[Path]:
    pattern = "baton-kv-*/*/??/*" if root == Path("/dev/shm") else "baton-kv/*/??/*"
    return [path for path in root.glob(pattern) if path.is_file() and not path.name.startswith(".")]


def _drop(root: Path) -> None:
    for path in _block_files(root):
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


async def measure(model: Path, tier: str, num_tokens: int, repeats: int, report: Report) -> None:
    """Add the row of one tier."""
    config = read_model_config(model)
    rng = random.Random(0)
    num_bytes = num_tokens * kv_bytes_per_token(config)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(num_tokens)] for _ in range(repeats + 2)]
    computed: list[RequestTimes] = []
    fetched: list[RequestTimes] = []
    with tempfile.TemporaryDirectory() as directory:
        async with tier_setup(tier, Path(directory), 4 * num_bytes) as setup:
            pool_bytes = num_bytes + SPARE_BLOCKS * BLOCK_SIZE * kv_bytes_per_token(config)
            cache = ("--colocated", "1", "--kv-cache-memory-bytes", str(pool_bytes))
            async with served(str(model), *cache, *setup.flags) as url:
                await one(url, prompts[0])
                for turn in range(1, repeats + 2):
                    computed.append(await one(url, prompts[turn]))
                    await asyncio.sleep(1)  # until its blocks are saved
                    setup.drop_caches()
                    fetched.append(await one(url, prompts[turn - 1]))
                    num_stored = _num_stored(fetched[-1], tier, num_tokens)
                setup.drop_caches()
                read_ms = 1e3 * num_bytes * num_stored / num_tokens / setup.read_all()
    computed_ms, fetched_ms = (1e3 * median(each.ttft_s for each in times[1:]) for times in (computed, fetched))
    limit_ms = read_ms + computed_ms * (1 - num_stored / num_tokens)
    report.add(
        tier, num_tokens, num_bytes / 1e6, computed_ms, fetched_ms, computed_ms / fetched_ms, limit_ms,
        limit_ms / fetched_ms,
    )  # fmt: skip
    report.show()


async def one(url: str, prompt: list[int]) -> RequestTimes:
    """Run one request."""
    return (await run_wave(url, [prompt], NUM_OUTPUT_TOKENS)).requests[0]


def _num_stored(times: RequestTimes, tier: str, num_tokens: int) -> int:
    """Return how many tokens of a prompt came from the tier: nearly all."""
    name, _, count = times.headers.get(STORED, "").partition("=")
    if name != NAMES.get(tier, tier) or int(count) < num_tokens - (SPARE_BLOCKS + 2) * BLOCK_SIZE:
        raise RuntimeError(f"{STORED}: {times.headers.get(STORED)!r}, but all {num_tokens} are in the {tier} tier")
    return int(count)


@click.command()
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--tokens", "num_tokens", default=4096, show_default=True, help="Tokens of a prompt.")
@click.option("--repeats", default=3, show_default=True, help="Measured prompts of a tier.")
@click.option("--tier", "tiers", type=click.Choice(TIERS), multiple=True, default=TIERS, show_default=True)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(model: Path | None, num_tokens: int, repeats: int, tiers: Sequence[str], json_file: Path | None) -> None:
    """Measure a random model with the shape of Qwen3-0.6B, or the given model."""
    report = Report("First token of a prompt whose KV is in a store, one worker", COLUMNS)

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            chosen = model or (await random_model(Path(directory)))[1]
            for tier in tiers:
                await measure(chosen, tier, num_tokens, repeats, report)

    asyncio.run(run())
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
