"""Cost of the router's prefix index at 1,000 workers and 10 million cached blocks.

    python -m benchmarks.prefix_index [--json FILE] [--workers N] [--blocks-each N] [--seconds S]

Every worker holds ten system prompts (as prefixes) and conversation suffixes, each of which another worker holds too,
as with prefill and decode workers. A prompt of 100,000 tokens is looked up: cached nowhere, cached by a few workers
after a system prompt, and cached by every worker up to a different block. Then a process of many workers sends cache
events over gRPC, and another process applies them while it hashes and looks up prompts of 750 tokens (3 KB), as a
router does.
"""

import asyncio
import multiprocessing
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import click
import grpc
import psutil
import uvloop

from baton.engine.kv.block_hash import HASH_BYTES, pack_hashes, root_hash
from baton.engine.kv.python_block_hash import chain_hashes
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.router.index.prefix_index import PrefixIndex, create_index
from baton.router.index.python_prefix_index import PythonIndex
from baton.rpc.grpc_options import CHANNEL_OPTIONS
from benchmarks.event_source import EventRate, serve
from benchmarks.load import percentile
from benchmarks.report import Report

BLOCK_SIZE = 16
LONG_TOKENS, SHORT_TOKENS = 100_000, 750
NUM_SYSTEM_PROMPTS, SYSTEM_BLOCKS = 10, 100
UPDATE_BLOCKS = 64
NUM_LOOKUPS = 1_000
LOOKUP_INTERVAL_S = 0.002
COLUMNS = ("what", "p50", "p99", "unit", "bound")


def prompt_hashes(rng: random.Random, num_tokens: int) -> bytes:
    """Return the hashes of a new prompt."""
    return pack_hashes(root_hash(), [rng.randrange(150_000) for _ in range(num_tokens)], BLOCK_SIZE)


def fill(index: PrefixIndex, num_workers: int, blocks_each: int, prompt: bytes, rng: random.Random) -> None:
    """Fill every worker's cache: `prompt` up to a different block each, system prompts and conversations."""
    systems = b"".join(prompt_hashes(rng, SYSTEM_BLOCKS * BLOCK_SIZE) for _ in range(NUM_SYSTEM_PROMPTS))
    neighbour = b""
    for number in range(num_workers):
        known = prompt[: HASH_BYTES * rng.randrange(1, min(blocks_each * 2 // 3, len(prompt) // HASH_BYTES))]
        shared = known + systems
        shared += neighbour[: (HASH_BYTES * blocks_each - len(shared)) // 2]
        own = rng.randbytes(HASH_BYTES * blocks_each - len(shared))
        blocks = shared + own
        for start in range(0, len(blocks), HASH_BYTES * UPDATE_BLOCKS):
            index.update(f"worker-{number}", b"", blocks[start : start + HASH_BYTES * UPDATE_BLOCKS])
        neighbour = own


def timed(report: Report, what: str, call: Callable[[], object], count: int, bound: str = "") -> None:
    """Add a row of a call's CPU microseconds, which other processes hardly affect."""
    times_us = []
    for _ in range(count):
        started_s = time.thread_time()
        call()
        times_us.append((time.thread_time() - started_s) * 1e6)
    report.add(what, round(median(times_us), 1), round(percentile(times_us, 99), 1), "us of CPU", bound)


def measure_lookups(report: Report, num_workers: int, blocks_each: int) -> PrefixIndex:
    """Fill an index, add its rows, and return it."""
    rng = random.Random(0)
    process, index, prompt = psutil.Process(), PrefixIndex(), prompt_hashes(rng, LONG_TOKENS)
    before_bytes, started_s = process.memory_info().rss, time.process_time()
    fill(index, num_workers, blocks_each, prompt, rng)
    num_entries = sum(index.num_blocks(f"worker-{number}") for number in range(num_workers))
    spent_s, spent_bytes = time.process_time() - started_s, process.memory_info().rss - before_bytes
    rate = round(num_entries / spent_s)
    report.add("cached blocks of all workers", num_entries, num_entries, "blocks", "10,000,000")
    report.add("memory", round(spent_bytes / 2**20), round(spent_bytes / 2**20), "MiB", "")
    report.add("memory per cached block", *[round(spent_bytes / num_entries, 1)] * 2, "bytes", "")
    report.add("blocks added while filling", rate, rate, "blocks per CPU second", "300,000")
    shallow = prompt_hashes(rng, SYSTEM_BLOCKS * BLOCK_SIZE)
    for number in range(num_workers):
        index.update(f"worker-{number}", b"", shallow)
    unknown = prompt_hashes(rng, LONG_TOKENS)
    chat = shallow + unknown[len(shallow) :]
    for number in range(2):
        index.update(f"worker-{number}", b"", chat[: len(chat) // 2])
    bound = "1,000 at p99"
    timed(report, "look up 100k tokens: none cached", lambda: index.match(unknown), NUM_LOOKUPS, bound)
    timed(report, "look up 100k tokens: all have 1.6k, two have 50k", lambda: index.match(chat), NUM_LOOKUPS, bound)
    timed(report, "look up 100k tokens: lengths differ by worker", lambda: index.match(prompt), NUM_LOOKUPS, bound)
    return index


def measure_hashing(report: Report) -> None:
    """Add the rows of hashing a prompt, compiled and in Python."""
    rng, root = random.Random(1), root_hash()
    for num_tokens in (SHORT_TOKENS, LONG_TOKENS):
        tokens = [rng.randrange(150_000) for _ in range(num_tokens)]
        compiled = partial(pack_hashes, root, tokens, BLOCK_SIZE)
        timed(report, f"hash {num_tokens:,} tokens", compiled, 200)
        timed(report, f"hash {num_tokens:,} tokens in Python", partial(chain_hashes, root, tokens, BLOCK_SIZE, 0), 50)


@dataclass(slots=True)
class EventReceiver:
    """A process that applies cache events while it routes."""

    index: PrefixIndex
    num_blocks: int = 0
    lookup_us: list[float] = field(default_factory=list)
    late_us: list[float] = field(default_factory=list)  # event loop delay of a request

    async def watch(self, channel: grpc.aio.Channel) -> None:
        """Apply one worker's events."""
        async for update in worker_pb2_grpc.WorkerStub(channel).Watch(worker_pb2.WatchRequest(interval_ms=10)):
            self.index.update(update.incarnation, update.cache.removed, update.cache.stored)
            self.num_blocks += (len(update.cache.removed) + len(update.cache.stored)) // HASH_BYTES

    async def route(self) -> None:
        """Hash and look up a prompt repeatedly."""
        rng, root = random.Random(2), root_hash()
        prompts = [[rng.randrange(150_000) for _ in range(SHORT_TOKENS)] for _ in range(16)]
        while True:
            due_s = time.perf_counter() + LOOKUP_INTERVAL_S
            await asyncio.sleep(LOOKUP_INTERVAL_S)
            started_s = time.perf_counter()
            self.index.match(pack_hashes(root, prompts[len(self.lookup_us) % 16], BLOCK_SIZE))
            self.lookup_us.append((time.perf_counter() - started_s) * 1e6)
            self.late_us.append((started_s - due_s) * 1e6)


async def measure_intake(report: Report, index: PrefixIndex, rate: EventRate, port: int, seconds: float) -> None:
    """Add the rows of a process that applies events at a rate while it routes."""
    intake = EventReceiver(index)
    tasks = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel:
        tasks = [asyncio.ensure_future(intake.watch(channel)) for _ in range(rate.num_workers)]
        await asyncio.sleep(1.0)  # until all streams are connected and have caught up
        tasks.append(asyncio.ensure_future(intake.route()))
        intake.num_blocks, started_s, spent_s = 0, time.perf_counter(), time.process_time()
        await asyncio.sleep(seconds)
        wall_s, spent_s = time.perf_counter() - started_s, time.process_time() - spent_s
        num_blocks = intake.num_blocks
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
    per_s = round(num_blocks / wall_s)
    sizes = f"{rate.num_workers} streams, {rate.blocks_per_message} blocks a message"
    report.add(f"events applied while routing ({sizes})", per_s, per_s, "blocks/s", "300,000")
    report.add("CPU of the process meanwhile", *[round(100 * spent_s / wall_s, 1)] * 2, "% of a core", "")
    for what, times_us in (
        ("hash and look up 750 tokens", intake.lookup_us),
        ("wait for the event loop", intake.late_us),
    ):
        report.add(f"{what} meanwhile", round(median(times_us), 1), round(percentile(times_us, 99), 1), "us", "")


@click.command()
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write the results as JSON.")
@click.option("--workers", default=1_000, show_default=True)
@click.option("--blocks-each", default=10_000, show_default=True)
@click.option("--seconds", default=10.0, show_default=True)
def main(json_path: Path | None, workers: int, blocks_each: int, seconds: float) -> None:
    """Measure the prefix index."""
    report = Report("prefix index", COLUMNS)
    if isinstance(create_index(), PythonIndex):
        report.notes.append("the compiled index is not installed: these are figures of the Python index")
    rate = EventRate(num_workers=100, blocks_per_s=300_000, interval_s=0.02)
    ours, theirs = multiprocessing.Pipe()
    source = multiprocessing.get_context("spawn").Process(target=serve, args=(rate, theirs), daemon=True)
    source.start()
    try:
        index = measure_lookups(report, workers, blocks_each)
        measure_hashing(report)
        uvloop.run(measure_intake(report, index, rate, ours.recv(), seconds))
    finally:
        source.terminate()
        source.join()
    report.show()
    if json_path is not None:
        report.write(json_path)


if __name__ == "__main__":
    main()
