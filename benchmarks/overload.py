"""Overload: ten times the workers' capacity, and the latency of the requests that are served.

    python -m benchmarks.overload [--json FILE] [--seconds S] [--wait-s W]

A real router in front of simulated workers, which use the real protocol and compute nothing. Their capacity is measured
first, in a closed loop. Then requests arrive as a Poisson process at half of the capacity, at nine tenths, at ten times
for a while, and at half again. For served requests, TTFT and TPOT are reported; for rejected ones, whether the response
had `Retry-After`. The router's memory is its resident set at the end of each phase.
"""

import asyncio
import gc
import random
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from time import monotonic

import click
import httpx
import orjson
import psutil
import uvloop

from benchmarks.http_load import Exchange, post, run_load
from benchmarks.load import percentile
from benchmarks.report import Report
from benchmarks.server import free_port, wait_ready

NUM_PROMPT_TOKENS = 200
OUTPUT_TOKENS = (20, 100)  # minimum and maximum
NUM_WORKERS, NUM_SEQS = 2, 8
WORKERS = (f"--colocated={NUM_WORKERS}", f"--max-num-seqs={NUM_SEQS}", "--step-s=0.02", "--sequence-s=0.0005")
CLOSED_LOOP_S = 10.0
MOST_OPEN = 256  # client connections: more than the router runs and queues
FIRST_ID, NUM_IDS = 300, 3000
COLUMNS = ("load", "of capacity", "offered/s", "served/s", "refused", "with Retry-After", "TTFT p50 ms",
           "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "router MiB")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phase:
    """Period of constant load."""

    name: str
    share: float  # of the workers' capacity
    length: float = 1.0  # in units of the shortest phase


PHASES = (Phase("light", 0.5), Phase("full", 0.9), Phase("overload", 10.0, 3.0), Phase("light again", 0.5))


def make_exchange(rng: random.Random, request_id: str, due_s: float) -> Exchange:
    """Return a streamed completion of an uncached prompt."""
    body = {
        "prompt": [FIRST_ID + rng.randrange(NUM_IDS) for _ in range(NUM_PROMPT_TOKENS)],
        "max_tokens": rng.randint(*OUTPUT_TOKENS),
        "ignore_eos": True,
        "stream": True,
    }
    payload = post("/v1/completions", orjson.dumps(body), f"x-request-id: {request_id}")
    return Exchange(request_id, payload, due_s, may_be_refused=True)


def num_tokens(exchange: Exchange) -> int:
    """Return the requested, and thus generated, output tokens."""
    body = orjson.loads(exchange.payload.partition(b"\r\n\r\n")[2])
    return int(body["max_tokens"])


@dataclass(slots=True)
class Bench:
    """Measured processes."""

    port: int
    router: psutil.Process
    rng: random.Random

    async def capacity(self) -> float:
        """Return the capacity in requests per second, with all slots in use."""
        count = max(NUM_WORKERS * NUM_SEQS * 4, int(CLOSED_LOOP_S * 10))
        exchanges = [make_exchange(self.rng, f"closed-{number}", 0) for number in range(count)]
        started_s = monotonic()
        await run_load(self.port, exchanges, NUM_WORKERS * NUM_SEQS, timed=False)
        return count / (monotonic() - started_s)

    async def run(self, phase: Phase, capacity: float, seconds: float, report: Report) -> None:
        """Add a row."""
        rate, length_s = capacity * phase.share, seconds * phase.length
        exchanges, due_s = [], 0.0
        while (due_s := due_s + self.rng.expovariate(rate)) < length_s:
            exchanges.append(make_exchange(self.rng, f"{phase.name}-{len(exchanges)}".replace(" ", "-"), due_s))
        await run_load(self.port, exchanges, MOST_OPEN, timed=True)
        served = [exchange for exchange in exchanges if exchange.status == httpx.codes.OK]
        refused = [exchange for exchange in exchanges if exchange.status == httpx.codes.TOO_MANY_REQUESTS]
        assert len(served) + len(refused) == len(exchanges), {exchange.status for exchange in exchanges}
        with_retry_after = [exchange for exchange in refused if "retry-after" in exchange.headers]
        ttfts = [(exchange.first_s - exchange.sent_s) * 1e3 for exchange in served]
        tpots = [(exchange.last_s - exchange.first_s) * 1e3 / (num_tokens(exchange) - 1) for exchange in served]
        report.add(
            phase.name, phase.share, round(len(exchanges) / length_s, 1), round(len(served) / length_s, 1),
            len(refused), len(with_retry_after),
            *(round(percentile(values, percent), 1) for values in (ttfts, tpots) for percent in (50, 99)),
            round(self.router.memory_info().rss / 2**20),
        )  # fmt: skip


@asynccontextmanager
async def benched(wait_s: float) -> AsyncIterator[Bench]:
    """Start workers and a router."""
    workers = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.simulation.workers", *WORKERS, stdout=PIPE, limit=1 << 22
    )
    assert workers.stdout is not None
    addresses = orjson.loads(await workers.stdout.readline())["addresses"]
    port = free_port()
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.router", "--model", str(files("baton") / "bundled_model"), "--port", str(port),
        "--workers", addresses, "--max-queue-wait-s", str(wait_s), "--log-level", "error",
    )  # fmt: skip
    try:
        await wait_ready(f"http://127.0.0.1:{port}", router)
        yield Bench(port, psutil.Process(router.pid), random.Random(0))
    finally:
        for process in (router, workers):
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def measure(phases: Sequence[Phase], seconds: float, wait_s: float) -> Report:
    """Run the phases one after the other on the same router."""
    report = Report("Overload", COLUMNS)
    async with benched(wait_s) as bench:
        capacity = await bench.capacity()
        for phase in phases:
            await bench.run(phase, capacity, seconds, report)
    report.notes.append(
        f"{NUM_WORKERS} simulated workers of {NUM_SEQS} sequences have a capacity of {capacity:.1f} requests/s of "
        f"{NUM_PROMPT_TOKENS} prompt and {OUTPUT_TOKENS[0]} to {OUTPUT_TOKENS[1]} output tokens; the longest "
        f"allowed wait is {wait_s:g} s."
    )
    return report


@click.command()
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results as JSON.")
@click.option("--seconds", default=20.0, show_default=True, help="Seconds of a phase; the overload lasts three.")
@click.option("--wait-s", default=0.1, show_default=True, help="Maximum seconds of queueing in the router.")
def main(path: Path | None, seconds: float, wait_s: float) -> None:
    """Measure a router under overload."""
    gc.disable()  # a collection would distort the times
    report = uvloop.run(measure(PHASES, seconds, wait_s))
    report.show()
    if path is not None:
        report.write(path)


if __name__ == "__main__":
    main()
