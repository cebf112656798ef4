"""Cost of one router process: CPU per request, and added latency.

    python -m benchmarks.router_cost [--json FILE] [--repeats N] [--rate R] [--router-flag FLAG]

A real router (`python -m baton.router`) serves chat requests of 8 output tokens over loopback HTTP, in front of a
worker without a model that generates a token every 10 ms (`benchmarks/step_worker.py`). CPU is the process's time from
the operating system: in a closed loop that keeps the router busy, and at a moderate rate, where wake-ups count too.
Added latency is the client's wait minus the worker's time, on the same clock, at the moderate rate: to the first token
for streams, to the end otherwise. "new" prompts share no prefix; "chat" prompts are turns of conversations with a
common system prompt, each with the earlier turns. Results are medians of interleaved repeats."""

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
    """Measurements of a cell's runs."""

    busy_cpu_s: list[float] = field(default_factory=list)  # per request, by run
    requests_per_s: list[float] = field(default_factory=list)  # by run, when busy
    rate_cpu_s: list[float] = field(default_factory=list)  # per request, by run
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
    """Random texts of words from this repository."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        pages = sorted((ROOT / "docs").glob("*.md"))
        self._words = " ".join(page.read_text() for page in pages).split(" ")
        self._system = self.text(1000)

    def text(self, num_bytes: int) -> str:
        """Return a text of about this many bytes."""
        parts: list[str] = []
        left = num_bytes
        while left > 0:
            parts.append(self._random.choice(self._words))
            left -= len(parts[-1]) + 1
        return " ".join(parts)

    def messages(self, cell: Cell) -> Iterator[list[dict[str, str]]]:
        """Yield conversations of one request each (new), or of many, each with the earlier turns (chat)."""
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
    """Return requests with exponential gaps."""
    prompts, times, due_s = Prompts(seed), random.Random(seed), 0.0
    exchanges: list[Exchange] = []
    for place, messages in enumerate(islice(prompts.messages(cell), num_requests)):
        due_s += times.expovariate(rate)
        body = {"messages": messages, "max_tokens": NUM_OUTPUT_TOKENS, "ignore_eos": True, "stream": cell.stream}
        request_id = f"r{seed}-{place}"
        payload = post("/v1/chat/completions", orjson.dumps(body), f"x-request-id: {request_id}")
        exchanges.append(Exchange(request_id, payload, due_s))
    return exchanges


@dataclass(slots=True)
class Bench:
    """Measured processes."""

    worker: Process
    router: psutil.Process
    port: int

    async def run_busy(self, exchanges: Sequence[Exchange], samples: Samples) -> None:
        """Run a closed loop that keeps the router busy."""
        before_s, started_s = self._cpu_s(), monotonic()
        await run_load(self.port, exchanges, NUM_CONNECTIONS, timed=False)
        elapsed_s = monotonic() - started_s
        samples.busy_cpu_s.append((self._cpu_s() - before_s) / len(exchanges))
        samples.requests_per_s.append(len(exchanges) / elapsed_s)
        await self._worker_times()

    async def run_at_rate(self, cell: Cell, exchanges: Sequence[Exchange], samples: Samples) -> None:
        """Run an open loop at the rate."""
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
        """Return the worker's times of each request since the last call, by the client's request id."""
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(b"\n")
        times = orjson.loads(await self.worker.stdout.readline())
        return {command_id.rsplit("-", 3)[0]: tuple(each) for command_id, each in times.items()}


@asynccontextmanager
async def benched(flags: Sequence[str]) -> AsyncIterator[Bench]:
    """Start a worker and a router with further flags."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.step_worker", stdin=PIPE, stdout=PIPE, limit=1 << 26
    )
    assert worker.stdout is not None
    address = (await worker.stdout.readline()).decode().strip()
    port = free_port()
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.router", "--model", str(files("baton") / "bundled_model"), "--port", str(port),
        "--workers", address, "--log-level", "warning", *flags,
    )  # fmt: skip
    try:
        await wait_ready(f"http://127.0.0.1:{port}", router)
        yield Bench(worker, psutil.Process(router.pid), port)
    finally:
        for process in (router, worker):
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def measure(repeats: int, rate: float, seconds: float, flags: Sequence[str]) -> Report:
    """Measure all cells, interleaved."""
    samples = {cell: Samples() for cell in CELLS}
    seeds = count(1)
    async with benched(flags) as bench:
        for repeat in range(-1, repeats):  # the first is a warmup
            for cell in CELLS:
                found = samples[cell] if repeat >= 0 else Samples()
                cell_rate = rate * cell.share
                num_requests = max(20, int(cell_rate * seconds))
                await bench.run_busy(make_exchanges(cell, 2 * num_requests, cell_rate, next(seeds)), found)
                await bench.run_at_rate(cell, make_exchanges(cell, num_requests, cell_rate, next(seeds)), found)
    report = Report("Cost of one router process", COLUMNS)
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
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results as JSON.")
@click.option("--repeats", default=3, show_default=True)
@click.option("--rate", default=100.0, show_default=True, help="Requests per second with 3 KB; longer ones are rarer.")
@click.option("--seconds", default=4.0, show_default=True, help="Seconds of one run.")
@click.option("--router-flag", "flags", multiple=True, help="Further flag of the router, such as --keep-timelines=9.")
def main(path: Path | None, repeats: int, rate: float, seconds: float, flags: tuple[str, ...]) -> None:
    """Measure a separate router process."""
    gc.disable()  # a collection would distort the router's times
    report = uvloop.run(measure(repeats, rate, seconds, flags))
    report.show()
    if path is not None:
        report.write(path)


if __name__ == "__main__":
    main()
