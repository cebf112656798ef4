"""Bandwidth of block transfers between two processes, compared with memcpy and a raw socket in the same run.

    python -m benchmarks.kv_transfer --seconds 10 --json benchmarks/results/kv_transfer.json

Results are medians over interleaved rounds, so that other load affects all methods equally. A round of each method
moves the same number of random blocks; latency is that of one block, as a caller of `read` sees it.
"""

import asyncio
import json
import multiprocessing
import os
import random
import socket
import statistics
import threading
import time
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import click
import numpy as np
import torch
import xxhash
from rich.console import Console
from rich.table import Table

from baton.kvtransfer.base import KVTransport, PeerId, PoolDescription, PoolIdentity
from baton.kvtransfer.errors import TransportUnavailable
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.local_pool import block_bytes_of
from baton.kvtransfer.shared_memory.pool import SharedPool
from benchmarks.kv_methods import Method, copy_limit, memcpy, raw_socket, serve_raw, transport_method
from benchmarks.machine import MachineInfo, describe

HOST = "127.0.0.1"
TRANSPORTS = ("shared_memory", "nixl", "tcp")
BASELINE = {"shared_memory": "memcpy", "nixl": "memcpy", "tcp": "raw socket"}
TARGETS = {"shared_memory": 0.8, "nixl": 0.6, "tcp": 0.8}  # ratio to the baseline, at 1 MiB
POOL_BYTES = 256 << 20
ROUND_BYTES = 64 << 20
MIN_ROUNDS = 7
NUM_LATENCIES = 20  # per round


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table."""

    block_kib: int
    method: str
    gb_per_s: float
    latency_us: float
    ratio: float | None  # to the baseline
    memory_ratio: float  # to the copy rate of all cores


@dataclass(slots=True)
class Samples:
    """Measurements of one method."""

    gb_per_s: list[float] = field(default_factory=list)
    latency_s: list[float] = field(default_factory=list)


def serve(pipe: Connection, block_bytes: int) -> None:
    """Run the peer process: one pool, every available transport, and the raw socket."""
    torch.set_num_threads(1)
    asyncio.run(_serve(pipe, block_bytes))


async def _serve(pipe: Connection, block_bytes: int) -> None:
    memory = SharedPool()
    pool = memory.allocate((POOL_BYTES // block_bytes, block_bytes), torch.uint8)
    pool.random_(generator=torch.Generator().manual_seed(1))
    transports = create_transports("owner", memory)
    descriptions = {name: transport.register_pool(pool) for name, transport in transports.items()}
    listener = socket.create_server((HOST, 0))
    threading.Thread(target=serve_raw, args=(listener, block_bytes_of(pool)), daemon=True).start()
    pipe.send((descriptions, listener.getsockname()))
    await asyncio.to_thread(pipe.poll, None)  # until the reader has ended
    for transport in transports.values():
        await transport.close()


def create_transports(incarnation: str, memory: SharedPool) -> dict[str, KVTransport]:
    """Return the available transports."""
    transports: dict[str, KVTransport] = {}
    for name in TRANSPORTS:
        try:
            transports[name] = create_transport(name, PoolIdentity(incarnation, "benchmark"), memory, HOST)
        except TransportUnavailable as error:
            click.echo(f"{name} does not work here: {error}", err=True)
    return transports


async def connect(
    descriptions: dict[str, PoolDescription], transports: dict[str, KVTransport]
) -> dict[str, tuple[KVTransport, PeerId]]:
    """Return the transports that can reach the peer process."""
    connected: dict[str, tuple[KVTransport, PeerId]] = {}
    for name in transports.keys() & descriptions.keys():
        try:
            connected[name] = transports[name], await transports[name].connect(descriptions[name])
        except TransportUnavailable as error:
            click.echo(f"{name} does not work here: {error}", err=True)
    return connected


async def measure_block_size(block_bytes: int, seconds: float) -> list[Result]:
    """Measure all methods, interleaved, for one block size."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, block_bytes), daemon=True)
    process.start()
    theirs.close()
    memory, local_source = SharedPool(), SharedPool()
    shape = (POOL_BYTES // block_bytes, block_bytes)
    pool = memory.allocate(shape, torch.uint8)
    source = local_source.allocate(shape, torch.uint8)
    transports = create_transports("reader", memory)
    for transport in transports.values():
        transport.register_pool(pool)
    descriptions, address = await asyncio.to_thread(ours.recv)
    target = block_bytes_of(pool)
    methods = [memcpy(block_bytes_of(source), target), raw_socket(address, target)]
    for name, (transport, peer) in sorted((await connect(descriptions, transports)).items()):
        methods.append(transport_method(name, transport, peer))
    limit = copy_limit(block_bytes_of(source), target)
    samples = await measure(methods, block_bytes, seconds)
    limit = max(limit, copy_limit(block_bytes_of(source), target))
    for transport in transports.values():
        await transport.close()
    ours.close()
    process.join()
    return results(block_bytes, samples, limit)


async def measure(methods: list[Method], block_bytes: int, seconds: float) -> dict[str, Samples]:
    """Run rounds for `seconds`: each method once per round, in random order, with the same blocks."""
    rng = random.Random(1)
    num_blocks = POOL_BYTES // block_bytes
    samples = {method.name: Samples() for method in methods}
    end_s = time.perf_counter() + seconds
    num_rounds = -1  # the first is a warmup
    while num_rounds < MIN_ROUNDS or time.perf_counter() < end_s:
        remote = rng.sample(range(num_blocks), ROUND_BYTES // block_bytes)
        local = rng.sample(range(num_blocks), ROUND_BYTES // block_bytes)
        for method in rng.sample(methods, len(methods)):
            elapsed_s = await timed(method.move(remote, local))
            latencies = [await timed(method.move(remote[i : i + 1], local[i : i + 1])) for i in _few(len(remote))]
            if num_rounds >= 0:
                samples[method.name].gb_per_s.append(ROUND_BYTES / elapsed_s / 1e9)
                samples[method.name].latency_s.extend(latencies)
        num_rounds += 1
    return samples


def _few(count: int) -> list[int]:
    return [index % count for index in range(NUM_LATENCIES)]


async def timed(work: Awaitable[None]) -> float:
    """Return the seconds until it is done."""
    started_s = time.perf_counter()
    await work
    return time.perf_counter() - started_s


def results(block_bytes: int, samples: dict[str, Samples], limit: float) -> list[Result]:
    """Return medians and ratios. A ratio is the median over rounds, because both sides of a round had the same load."""
    lines = []
    for name, sample in samples.items():
        ratio = None
        if name in BASELINE:
            pairs = zip(sample.gb_per_s, samples[BASELINE[name]].gb_per_s, strict=True)
            ratio = statistics.median(ours / baseline for ours, baseline in pairs)
        speed = statistics.median(sample.gb_per_s)
        latency_us = statistics.median(sample.latency_s) * 1e6
        lines.append(Result(block_bytes >> 10, name, speed, latency_us, ratio, speed / limit))
    return lines


def checksum_gb_per_s() -> float:
    """Return the median checksum rate for blocks of 1 MiB."""
    blocks = np.random.default_rng(1).integers(0, 256, (64, 1 << 20), np.uint8)
    speeds = []
    for _ in range(9):
        started_s = time.perf_counter()
        for block in blocks:
            xxhash.xxh3_64_intdigest(block)
        speeds.append(blocks.nbytes / (time.perf_counter() - started_s) / 1e9)
    return statistics.median(speeds)


def show(lines: list[Result], checksum: float, about: MachineInfo) -> None:
    """Print the table."""
    table = Table(title=f"KV transfer between two processes, {about.cpu}, {about.num_cores} cores")
    for column in ("block", "method", "GB/s", "p50 of one", "ratio", "to reach", "of the limit"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for line in lines:
        target = TARGETS.get(line.method) if line.block_kib == 1024 else None
        table.add_row(
            f"{line.block_kib} KiB",
            line.method,
            f"{line.gb_per_s:.2f}",
            f"{line.latency_us:.0f} us",
            "" if line.ratio is None else f"{line.ratio:.2f} {BASELINE[line.method]}",
            "" if target is None else f"{target:.2f}",
            f"{line.memory_ratio:.2f}",
            end_section=line is [each for each in lines if each.block_kib == line.block_kib][-1],
        )
    console = Console(width=100)
    console.print(table)
    console.print("limit: what all cores together copy from memory to memory")
    console.print(f"checksum (xxh3-64) of 1 MiB blocks: {checksum:.1f} GB/s, one core")


@click.command()
@click.option("--seconds", default=10.0, show_default=True, help="Seconds per block size.")
@click.option("--block-kib", default="64,256,1024,4096", show_default=True, help="Block sizes, comma-separated.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(seconds: float, block_kib: str, json_file: Path | None) -> None:
    """Measure KV transfer between two processes on this machine."""
    torch.set_num_threads(1)
    about = describe()
    load = os.getloadavg()[0]
    lines: list[Result] = []
    for kib in (int(size) for size in block_kib.split(",")):
        lines += asyncio.run(measure_block_size(kib << 10, seconds))
    checksum = checksum_gb_per_s()
    show(lines, checksum, about)
    if json_file is not None:
        report = {
            "machine": asdict(about),
            "load_average_at_start": load,
            "checksum_gb_per_s": checksum,
            "results": [asdict(line) for line in lines],
        }
        json_file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
