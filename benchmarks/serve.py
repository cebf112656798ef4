"""Colocated and disaggregated serving on the same cores, compared with transformers' continuous batching.

    python -m benchmarks.serve [--json FILE] [--repeats N] [--model DIR ...]

A cell is the median of waves that are interleaved over the systems. A wave is a number of requests started at once,
each with a random, uncached prompt, greedy, and with a fixed number of output tokens. Baton is measured at the client
of `baton serve`, over HTTP streams; transformers is measured inside its process.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import median

import click
import torch

from baton.engine.checkpoint.model_config import read_model_config
from benchmarks.checkpoint_floor import CheckpointFloor
from benchmarks.load import RequestTimes, percentile, run_wave
from benchmarks.machine import describe, measure_limits
from benchmarks.report import Report
from benchmarks.server import served

NUM_OUTPUT_TOKENS = 64
CELLS = ((128, 1), (128, 8), (1024, 1))  # prompt tokens, concurrent requests
COLOCATED, DISAGGREGATED, PEER = "colocated", "1 prefill + 1 decode", "transformers"
COLUMNS = ("model", "prompt", "requests", "system", "output tok/s", "of transformers", "of the limit", "TTFT p50 ms",
           "TTFT p99 ms", "TPOT p50 ms")  # fmt: skip

Prompts = Sequence[list[int]]


@dataclass(slots=True)
class Samples:
    """Measurements of one system's waves in one cell."""

    tokens_per_s: list[float] = field(default_factory=list)
    requests: list[RequestTimes] = field(default_factory=list)


RunWave = Callable[[Prompts, Samples], Awaitable[None]]


@asynccontextmanager
async def transformers_peer(model: Path, num_threads: int) -> AsyncIterator[RunWave]:
    """Run transformers in a separate process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.transformers_peer", str(model), str(num_threads),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        limit=1 << 24,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    async def answer() -> dict[str, object]:
        while line := await stdout.readline():
            if line.startswith(b"{"):
                return dict(json.loads(line))
        raise RuntimeError("transformers ended")

    async def run(prompts: Prompts, samples: Samples) -> None:
        wave = {"prompts": prompts, "num_output_tokens": NUM_OUTPUT_TOKENS}
        stdin.write(json.dumps(wave).encode() + b"\n")
        result = await answer()
        if result["num_output_tokens"] != [NUM_OUTPUT_TOKENS] * len(prompts):
            raise RuntimeError(f"transformers gave {result['num_output_tokens']} tokens")
        samples.tokens_per_s.append(len(prompts) * NUM_OUTPUT_TOKENS / float(str(result["elapsed_s"])))

    try:
        await answer()
        yield run
    finally:
        stdin.close()
        await process.wait()


@asynccontextmanager
async def baton(model: Path, *flags: str) -> AsyncIterator[RunWave]:
    """Run a Baton cluster."""
    async with served(str(model), *flags) as url:

        async def run(prompts: Prompts, samples: Samples) -> None:
            wave = await run_wave(url, prompts, NUM_OUTPUT_TOKENS)
            samples.tokens_per_s.append(wave.output_tokens_per_s)
            samples.requests += wave.requests

        yield run


async def measure(model: Path, name: str, repeats: int, report: Report) -> None:
    """Add the rows of one model."""
    config, floor = read_model_config(model), CheckpointFloor.of(model)
    num_cores = describe().num_cores
    limits = measure_limits(getattr(torch, config.dtype), num_cores)
    rng = random.Random(0)
    async with AsyncExitStack() as stack:
        systems = {
            COLOCATED: await stack.enter_async_context(baton(model, "--colocated", "1")),
            DISAGGREGATED: await stack.enter_async_context(baton(model, "--prefill", "1", "--decode", "1")),
            PEER: await stack.enter_async_context(transformers_peer(model, num_cores)),
        }
        for prompt_len, num_requests in CELLS:
            samples = {system: Samples() for system in systems}
            for repeat in range(repeats + 1):
                for system, run in systems.items():
                    prompts = [
                        [rng.randrange(config.vocab_size) for _ in range(prompt_len)] for _ in range(num_requests)
                    ]
                    await run(prompts, samples[system] if repeat else Samples())  # the first is a warmup
            limit = num_requests * NUM_OUTPUT_TOKENS / floor.wave_s(limits, prompt_len, num_requests, NUM_OUTPUT_TOKENS)
            _add_rows(report, (name, prompt_len, num_requests), samples, limit)
            report.show()


def _add_rows(report: Report, cell: tuple[str, int, int], samples: dict[str, Samples], limit: float) -> None:
    peer = median(samples[PEER].tokens_per_s)
    for system, sample in samples.items():
        rate = median(sample.tokens_per_s)
        ttfts = [1e3 * request.ttft_s for request in sample.requests]
        tpots = [1e3 * request.tpot_s for request in sample.requests]
        times = (median(ttfts), percentile(ttfts, 99), median(tpots)) if ttfts else ("", "", "")
        report.add(*cell, system, rate, rate / peer, rate / limit, *times)


@click.command()
@click.option("--model", "models", multiple=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--repeats", default=3, show_default=True, help="Measured waves per system and cell.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(models: tuple[Path, ...], repeats: int, json_file: Path | None) -> None:
    """Measure the bundled model and a random model with the shape of Qwen3-0.6B, or the given models."""
    report = Report(f"Serving, {NUM_OUTPUT_TOKENS} output tokens", COLUMNS)
    report.notes.append("limit: matrix rate for prompts, then memory reads of the weights, both measured in this run")

    async def run() -> None:
        with tempfile.TemporaryDirectory() as directory:
            chosen = [(model.name, model) for model in models]
            if not chosen:
                chosen = [("bundled", Path(str(files("baton") / "bundled_model"))), await random_model(Path(directory))]
            for name, model in chosen:
                await measure(model, name, repeats, report)

    asyncio.run(run())
    if json_file is not None:
        report.write(json_file)


async def random_model(directory: Path) -> tuple[str, Path]:
    """Create a random checkpoint with the shape of Qwen3-0.6B and a small vocabulary."""
    target = directory / "qwen3-0.6b-random"
    script = Path(__file__).parent.parent / "scripts" / "make_random_checkpoint.py"
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), "--shape", "qwen3-0.6b", str(target))
    if await process.wait() != 0:
        raise RuntimeError("the random checkpoint could not be created")
    return "qwen3-0.6b shape", target


if __name__ == "__main__":
    main()
