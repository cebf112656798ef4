"""What one router process costs: CPU per request, and the time it adds to a request.

    python -m benchmarks.router_cost [--json FILE] [--repeats N] [--rate R]

A real router (`python -m baton.router`) serves chat requests of 8 output tokens over loopback HTTP, in front of a
worker without a model that makes a token every 10 ms (`benchmarks/step_worker.py`). CPU is what the operating system
counted for the router's process: in a closed loop that keeps it busy, and at a moderate rate, where each wake-up from
idleness counts too. Added time is what the client waited less what the worker spent, both by the same clock, at the
moderate rate: to the first token for streams, to the end for whole answers. "new" prompts share nothing with any other;
"chat" prompts are turns of conversations under one system prompt, each with the turns before it. Medians of interleaved
repeats."""

import asyncio
import gc
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import count, islice
from pathlib import Path
from statistics import median
from time import monotonic

import click
import orjson
import psutil
import uvloop

from benchmarks.http_load import Exchange, post, run_load
from benchmarks.load import percentile
from benchmarks.report import Report
from benchmarks.server import free_port, wait_ready

COLUMNS = ("prompt", "bytes", "answer", "CPU us/request", "req/s", "CPU us/request at rate", "rate", "added p50 ms",
           "added p99 ms")  # fmt: skip
NUM_OUTPUT_TOKENS = 8
NUM_CONNECTIONS = 64
READY_TIMEOUT_S = 60.0
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of load."""

    kind: str  # new, chat
    num_bytes: int  # of a prompt, about
    stream: bool
    share: float = 1.0  # of the rate


@dataclass(slots=True)
class Samples:
    """What the runs of a cell gave."""

    busy_cpu_s: list[float] = field(default_factory=list)  # a request, by run
    requests_per_s: list[float] = field(default_factory=list)  # by run, when busy
    rate_cpu_s: list[float] = field(default_factory=list)  # a request, by run
    added_s: list[float] = field(default_factory=list)  # of every request, at the rate


CELLS = (
    Cell("new", 3_000, False),
    Cell("new", 3_000, True),
    Cell("chat", 3_000, False),
    Cell("chat", 3_000, True),
    Cell("new", 50_000, True, 0.2),
    Cell("chat", 50_000, True, 0.2),
)


class Prompts:
    """Texts made of this repository's own words in random order."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        pages = sorted((ROOT / "docs").glob("*.md"))
        self._words = " ".join(page.read_text() for page in pages).split(" ")
        self._system = self.text(1000)

    def text(self, num_bytes: int) -> str:
        """About so many bytes."""
        parts: list[str] = []
        left = num_bytes
        while left > 0:
            parts.append(self._random.choice(self._words))
            left -= len(parts[-1]) + 1
        return " ".join(parts)

    def messages(self, cell: Cell) -> Iterator[list[dict[str, str]]]:
        """Conversations of one request each (new), or of many, each with the turns before it (chat)."""
        while cell.kind == "new":
            yield [{"role": "user", "content": self.text(cell.num_bytes)}]
        while True:
            messages = [{"role": "system", "content": self._system}]
            turn_bytes = max(200, cell.num_bytes // 20)
            while sum(len(each["content"]) for each in messages) < 2 * cell.num_bytes - len(self._system):
                messages.append({"role": "user", "content": self.text(turn_bytes)})
                yield list(messages)
                messages.append({"role": "assistant", "content": self.text(turn_bytes)})


def make_exchanges(cell: Cell, num_requests: int, rate: float, seed: int) -> list[Exchange]:
    """Requests with exponential gaps between them."""
    prompts, times, due_s = Prompts(seed), random.Random(seed), 0.0
    exchanges: list[Exchange] = []
    for place, messages in enumerate(islice(prompts.messages(cell), num_requests)):
        due_s += times.expovariate(rate)
        body = {"messages": messages, "max_tokens": NUM_OUTPUT_TOKENS, "ignore_eos": True, "stream": cell.stream}
        request_id = f"r{seed}-{place}"
        exchanges.append(Exchange(request_id, post("/v1/chat/completions", request_id, orjson.dumps(body)), due_s))
    return exchanges


@dataclass(slots=True)
class Bench:
    """The processes under measurement."""

    worker: Process
    router: psutil.Process
    port: int

    async def run_busy(self, exchanges: Sequence[Exchange], samples: Samples) -> None:
        """As many as the router serves."""
        before_s, started_s = self._cpu_s(), monotonic()
        await run_load(self.port, exchanges, NUM_CONNECTIONS, timed=False)
        elapsed_s = monotonic() - started_s
        samples.busy_cpu_s.append((self._cpu_s() - before_s) / len(exchanges))
        samples.requests_per_s.append(len(exchanges) / elapsed_s)
        await self._worker_times()

    async def run_at_rate(self, cell: Cell, exchanges: Sequence[Exchange], samples: Samples) -> None:
        """Each request at its time."""
        before_s = self._cpu_s()
        await run_load(self.port, exchanges, NUM_CONNECTIONS, timed=True)
        samples.rate_cpu_s.append((self._cpu_s() - before_s) / len(exchanges))
        spent = await self._worker_times()
        for exchange in exchanges:
            received_s, first_s, last_s = spent[exchange.request_id]
            if cell.stream:
                samples.added_s.append(exchange.first_s - exchange.sent_s - (first_s - received_s))
            else:
                samples.added_s.append(exchange.last_s - exchange.sent_s - (last_s - received_s))

    def _cpu_s(self) -> float:
        times = self.router.cpu_times()
        return times.user + times.system

    async def _worker_times(self) -> dict[str, tuple[float, float, float]]:
        """What the worker spent on each request since the last call, by the client's request id."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(b"\n")
        times = orjson.loads(await self.worker.stdout.readline())
        return {command_id.rsplit("-", 3)[0]: tuple(each) for command_id, each in times.items()}


@asynccontextmanager
async def benched() -> AsyncIterator[Bench]:
    """Starts a worker and a router."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.step_worker", stdin=PIPE, stdout=PIPE, limit=1 << 26
    )
    assert worker.stdout is not None
    address = (await worker.stdout.readline()).decode().strip()
    port = free_port()
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.router", "--model", str(files("baton") / "bundled_model"), "--port", str(port),
        "--workers", address, "--log-level", "warning",
    )  # fmt: skip
    try:
        await wait_ready(f"http://127.0.0.1:{port}", router)
        yield Bench(worker, psutil.Process(router.pid), port)
    finally:
        for process in (router, worker):
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def measure(repeats: int, rate: float, seconds: float) -> Report:
    """All cells, interleaved."""
    samples = {cell: Samples() for cell in CELLS}
    seeds = count(1)
    async with benched() as bench:
        for repeat in range(-1, repeats):  # the first is for warming up
            for cell in CELLS:
                found = samples[cell] if repeat >= 0 else Samples()
                cell_rate = rate * cell.share
                num_requests = max(20, int(cell_rate * seconds))
                await bench.run_busy(make_exchanges(cell, 2 * num_requests, cell_rate, next(seeds)), found)
                await bench.run_at_rate(cell, make_exchanges(cell, num_requests, cell_rate, next(seeds)), found)
    report = Report("What one router process costs", COLUMNS)
    for cell, found in samples.items():
        report.add(
            cell.kind, cell.num_bytes, "stream" if cell.stream else "whole",
            round(median(found.busy_cpu_s) * 1e6), round(median(found.requests_per_s)),
            round(median(found.rate_cpu_s) * 1e6), rate * cell.share,
            round(percentile(found.added_s, 50) * 1e3, 2), round(percentile(found.added_s, 99) * 1e3, 2),
        )  # fmt: skip
    report.notes.append(f"{NUM_OUTPUT_TOKENS} output tokens; medians of {repeats} interleaved runs of {seconds:g} s.")
    return report


@click.command()
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results here too.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--rate", default=100.0, show_default=True, help="Requests a second of 3 KB; longer ones come rarer.")
@click.option("--seconds", default=4.0, show_default=True, help="Length of one run.")
def main(path: Path | None, repeats: int, rate: float, seconds: float) -> None:
    """Measures a router process of its own."""
    gc.disable()  # a collection here would stand in the router's times
    report = uvloop.run(measure(repeats, rate, seconds))
    report.show()
    if path is not None:
        report.write(path)


if __name__ == "__main__":
    main()
