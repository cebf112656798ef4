"""`baton bench` compared with another load tool, aiperf: equal loads on the same server must give equal results.

    python -m benchmarks.load_tools [--json FILE] [--repeats N] [--peer-env DIR]

The server is one router with simulated workers, whose times are fixed, so that differences come from the tools. Runs
are interleaved, each with uncached prompts, and a cell is the median over runs. The open loop sends at constant
intervals, because random times would differ between the tools. aiperf is installed from PyPI into a separate
environment.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from statistics import median

import click

from benchmarks.report import Report
from benchmarks.server import free_port, wait_ready

AIPERF = "aiperf==0.13.0"
PEER_FOLDER = Path.home() / ".cache" / "baton" / "load_tools"
MODEL = str(files("baton") / "bundled_model")
# Slow workers, so that other load on this machine is small compared with their times.
WORKERS = ("--colocated=2", "--step-s=0.05", "--prefill-tokens-per-s=2500", "--num-blocks=2048")
NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS = 256, 32
EVEN = 1e6  # burstiness: practically constant intervals
COLUMNS = ("load", "figure", "baton bench", "aiperf", "ratio")


@dataclass(frozen=True, slots=True)
class Load:
    """One load, as options of both tools."""

    name: str
    num_requests: int
    ours: Sequence[str]
    theirs: Sequence[str]


LOADS = (
    Load("1 at once", 12, ("--max-concurrency=1",), ("--concurrency", "1")),
    Load("4 at once", 32, ("--max-concurrency=4",), ("--concurrency", "4")),
    Load("4 req/s", 64, ("--request-rate=4", f"--burstiness={EVEN:.0f}"),
         ("--request-rate", "4", "--arrival-pattern", "constant")),
)  # fmt: skip

INPUT = "input tokens a request"
# Name, path in the JSON of `baton bench`, and path in aiperf's.
FIGURES = (
    ("TTFT mean ms", ("ttft_ms", "mean"), ("time_to_first_token", "avg")),
    ("TTFT p50 ms", ("ttft_ms", "p50"), ("time_to_first_token", "p50")),
    ("TTFT p99 ms", ("ttft_ms", "p99"), ("time_to_first_token", "p99")),
    ("TPOT mean ms", ("tpot_ms", "mean"), ("inter_token_latency", "avg")),
    ("E2E mean ms", ("e2e_ms", "mean"), ("request_latency", "avg")),
    ("E2E p99 ms", ("e2e_ms", "p99"), ("request_latency", "p99")),
    ("requests/s", ("requests_per_s",), ("request_throughput", "avg")),
    ("output tok/s", ("output_tokens_per_s",), ("output_token_throughput", "avg")),
)


@dataclass(slots=True)
class Samples:
    """Results of both tools under one load, a list of runs for each metric."""

    ours: dict[str, list[float]] = field(default_factory=dict)
    theirs: dict[str, list[float]] = field(default_factory=dict)


async def run(*command: str) -> None:
    """Run a command. Raises RuntimeError with its output if it fails."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {output.decode(errors='replace')[-2000:]}")


async def ensure_aiperf(folder: Path) -> Path:
    """Return aiperf's command; install it into `folder` if it is missing."""
    done = folder / "complete"
    if not done.exists():
        await run(sys.executable, "-m", "venv", "--clear", str(folder))
        await run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", AIPERF)
        done.touch()
    return folder / "bin" / "aiperf"


@asynccontextmanager
async def simulated_server() -> AsyncIterator[str]:
    """Start a router in front of simulated workers, and yield its URL."""
    workers = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.simulation.workers", *WORKERS, stdout=asyncio.subprocess.PIPE, limit=1 << 22
    )
    assert workers.stdout is not None
    addresses = json.loads(await workers.stdout.readline())["addresses"]
    port = free_port()
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton.router", "--model", MODEL, "--port", str(port), "--workers", addresses,
        "--log-level", "error",
    )  # fmt: skip
    try:
        await wait_ready(f"http://127.0.0.1:{port}", router)
        yield f"http://127.0.0.1:{port}"
    finally:
        for process in (router, workers):
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def run_ours(url: str, load: Load, seed: int, folder: Path) -> dict[str, float]:
    """Return the results of `baton bench`."""
    report = folder / "ours.json"
    await run(
        sys.executable, "-m", "baton", "bench", f"--base-url={url}", f"--tokenizer={MODEL}", "--prompts=text",
        f"--random-input-len={NUM_INPUT_TOKENS}", f"--random-output-len={NUM_OUTPUT_TOKENS}",
        f"--num-prompts={load.num_requests}", f"--seed={seed}", f"--json={report}", *load.ours,
    )  # fmt: skip
    (figures,) = json.loads(report.read_text())["runs"]
    num_tokens = figures["num_input_tokens"] / figures["num_completed"]
    return {name: _find(figures, path) for name, path, _ in FIGURES} | {INPUT: num_tokens}


async def run_theirs(aiperf: Path, url: str, load: Load, seed: int, folder: Path) -> dict[str, float]:
    """Return the results of aiperf."""
    artifacts = folder / "theirs"
    await run(
        str(aiperf), "profile", "--model", "bundled_model", "--url", url, "--endpoint-type", "completions",
        "--streaming", "--tokenizer", MODEL, "--use-server-token-count", "--ui", "none",
        "--synthetic-input-tokens-mean", str(NUM_INPUT_TOKENS), "--synthetic-input-tokens-stddev", "0",
        "--output-tokens-mean", str(NUM_OUTPUT_TOKENS), "--output-tokens-stddev", "0",
        "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0",
        "--request-count", str(load.num_requests), "--random-seed", str(seed), "--artifact-dir", str(artifacts),
        *load.theirs,
    )  # fmt: skip
    figures = json.loads((artifacts / "profile_export_aiperf.json").read_text())
    num_tokens = _find(figures, ("input_sequence_length", "avg"))
    return {name: _find(figures, path) for name, _, path in FIGURES} | {INPUT: num_tokens}


def _find(content: object, path: Sequence[str]) -> float:
    for key in path:
        assert isinstance(content, dict)
        content = content[key]
    assert isinstance(content, int | float)
    return float(content)


async def measure(repeats: int, peer_env: Path, show: Callable[[str], None]) -> Report:
    """Run all loads with both tools, in turns."""
    aiperf = await ensure_aiperf(peer_env)
    samples = {load.name: Samples() for load in LOADS}
    with tempfile.TemporaryDirectory(prefix="load-tools-") as folder:
        async with simulated_server() as url:
            for repeat in range(repeats):
                for place, load in enumerate(LOADS):
                    show(f"{load.name}, {repeat + 1} of {repeats}")
                    each, seed = samples[load.name], repeat * len(LOADS) + place  # uncached prompts
                    _add(each.ours, await run_ours(url, load, seed, Path(folder)))
                    _add(each.theirs, await run_theirs(aiperf, url, load, seed, Path(folder)))
    report = Report("Load tools", COLUMNS)
    for name, each in samples.items():
        for figure, values in each.ours.items():
            ours, theirs = median(values), median(each.theirs[figure])
            report.add(name, figure, ours, theirs, ours / theirs)
    report.notes.append(
        f"{NUM_INPUT_TOKENS} input and {NUM_OUTPUT_TOKENS} output tokens; 2 simulated workers, 50 ms a step; {AIPERF}; "
        f"median of {repeats} runs in turns"
    )
    return report


def _add(samples: dict[str, list[float]], figures: dict[str, float]) -> None:
    for name, value in figures.items():
        samples.setdefault(name, []).append(value)


@click.command()
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results as JSON.")
@click.option("--repeats", default=3, show_default=True, help="Runs per cell.")
@click.option("--peer-env", default=PEER_FOLDER, show_default=True, type=click.Path(path_type=Path),
              help="Directory of aiperf's environment; created if missing.")  # fmt: skip
def main(path: Path | None, repeats: int, peer_env: Path) -> None:
    """Compare `baton bench` with aiperf."""
    report = asyncio.run(measure(repeats, peer_env, lambda what: click.echo(what, err=True)))
    report.show()
    if path is not None:
        report.write(path)


if __name__ == "__main__":
    main()
