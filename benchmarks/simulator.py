"""Accuracy of `baton simulate --trace` compared with a real deployment, and its speed.

    python -m benchmarks.simulator [--json FILE] [--seconds S] [--repeats N]
    python -m benchmarks.simulator --simulated-workers [--json FILE] [--seconds S] [--repeats N]
    python -m benchmarks.simulator --speed [--workers N] [--requests N]

1. The bundled model is served by one prefill and one decode worker process behind a real router.
2. `baton bench --profile` sends it the beginning of the conversation trace, scaled down, several times, with different
   prompts each time.
3. The workers' times are fitted to every other run; the simulator gets the requests of the remaining runs.
4. The table compares the client's measurements of the remaining runs with the simulated ones.

With --simulated-workers there are three workers of each role, which compute nothing and have fixed times, so that other
load on the machine matters less; router, protocols, reports and handovers are real.

With --speed nothing is served: the simulator runs the given numbers of requests and workers, and is compared with
engines that execute every step, on a few requests.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import chain
from pathlib import Path

import click
import numpy as np

from baton.engine.kv.block_hash import pack_hashes, root_hash
from baton.loadtool.datasets.mooncake import HASH_TOKENS
from baton.loadtool.lengths import Lengths
from baton.loadtool.profile import ProfiledRequest
from baton.router.policy.policy import CostPolicy
from baton.settings.flags import flags_of
from baton.simulation.engine.engine import SimulatedEngine
from baton.simulation.engine.request import SimulatedRequest
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.virtual_time import run_in_virtual_time
from baton.simulation.study.fit import Fit, fit_machine
from baton.simulation.study.profile_reader import read_profile
from baton.simulation.study.reader import read_trace
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.machine import Machine
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.twin import Twin, simulate
from benchmarks.report import Report
from benchmarks.server import free_port, served, wait_ready

TRACE = Path(__file__).parent / "data" / "mooncake_conversation.csv"
NUM_WARMUPS = 12


@dataclass(frozen=True, slots=True)
class RealDeployment:
    """A real deployment, and its parameters for the simulator, apart from its times."""

    title: str
    spec: WorkerSpec
    num_each: int  # number of prefill workers, and of decode workers
    lengths: Lengths
    local_prefill_below: int | None
    serve: Callable[[], AbstractAsyncContextManager[str]]  # yields its URL


# A block has 16 tokens, 4 layers of 2 heads, in bf16.
BUNDLED_SPEC = WorkerSpec(
    num_blocks=16384,
    max_num_seqs=64,
    max_num_batched_tokens=2048,
    max_model_len=4096,
    block_bytes=32768,
    link_bytes_per_s=2e9,
)
SIMULATED_SPEC = WorkerSpec(step_s=0.03, sequence_s=0.001, prefill_tokens_per_s=4000.0, block_bytes=1 << 17)
CALIBRATION_COLUMNS = ("time", "real ms", "simulated ms", "simulated / real")
SPEED_COLUMNS = ("what", "workers", "requests", "CPU s", "requests / CPU s", "simulated s")
NUM_EXACT = 200  # requests for engines that execute every step
RATE_A_WORKER = 3.0  # requests per second: about 60% of the default machine's capacity


def bundled() -> AbstractAsyncContextManager[str]:
    """Serve the bundled model by `baton serve`."""
    batch = ("--max-num-batched-tokens", str(BUNDLED_SPEC.max_num_batched_tokens))
    return served("", "--prefill", "1", "--decode", "1", *batch, "--max-num-seqs", str(BUNDLED_SPEC.max_num_seqs))


@asynccontextmanager
async def simulated_workers(num_each: int) -> AsyncIterator[str]:
    """Run a real router with simulated workers. Raises RuntimeError if a process ends before it serves."""
    async with AsyncExitStack() as stack:
        workers = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "baton.simulation.workers", "--prefill", str(num_each), "--decode", str(num_each),
            *flags_of(SIMULATED_SPEC), stdout=PIPE,
        )  # fmt: skip
        stack.push_async_callback(end, workers)
        assert workers.stdout is not None
        line = await workers.stdout.readline()
        if not line:
            raise RuntimeError(f"the simulated workers ended with status {await workers.wait()}")
        port = free_port()
        router = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "baton.router", "--model", str(files("baton") / "bundled_model"), "--port", str(port),
            "--workers", json.loads(line)["addresses"], "--log-level", "error",
        )  # fmt: skip
        stack.push_async_callback(end, router)
        await wait_ready(f"http://127.0.0.1:{port}", router)
        yield f"http://127.0.0.1:{port}"


async def end(process: Process) -> None:
    """Send SIGTERM unless it has ended, and wait for it."""
    if process.returncode is None:
        process.terminate()
    await process.wait()


BUNDLED = RealDeployment(
    title="1 prefill + 1 decode worker, bundled model",
    spec=BUNDLED_SPEC,
    num_each=1,
    lengths=Lengths(1 / 8, max_input=3500, max_output=200),
    local_prefill_below=64,  # the default of `baton serve`
    serve=bundled,
)
SIMULATED = RealDeployment(
    title="3 prefill + 3 decode workers that compute nothing",
    spec=SIMULATED_SPEC,
    num_each=3,
    lengths=Lengths(1 / 8, max_input=8000, max_output=400),
    local_prefill_below=None,
    serve=lambda: simulated_workers(3),
)


async def bench(url: str, profile: Path, lengths: Lengths, seconds: float, seed: int) -> list[ProfiledRequest]:
    """Run `baton bench` once, and return its profile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton", "bench", "--base-url", url, "--dataset", "mooncake",
        "--dataset-path", str(TRACE), "--scale-lengths", str(lengths.scale), "--max-input-len", str(lengths.max_input),
        "--max-output-len", str(lengths.max_output), "--duration", str(seconds), "--num-warmups", str(NUM_WARMUPS),
        "--seed", str(seed), "--profile", str(profile),
    )  # fmt: skip
    try:
        status = await process.wait()
    finally:
        await end(process)
    if status != 0:
        raise RuntimeError(f"the load ended with status {status}")
    return read_profile(profile)


async def measure(real: RealDeployment, seconds: float, num_runs: int) -> list[list[ProfiledRequest]]:
    """Run the load several times on the same deployment."""
    with tempfile.TemporaryDirectory() as directory:
        async with real.serve() as url:
            profiles = [Path(directory) / f"{seed}.json" for seed in range(num_runs)]
            runs = [await bench(url, path, real.lengths, seconds, seed) for seed, path in enumerate(profiles)]
    return [[replace(request, run=place) for request in run] for place, run in enumerate(runs)]


def calibrate(real: RealDeployment, seconds: float, num_repeats: int) -> Report:
    """Compare real and simulated times."""
    runs = asyncio.run(measure(real, seconds, 2 * num_repeats))
    fit = fit_machine(list(chain.from_iterable(runs[::2])), real.spec)
    others = list(chain.from_iterable(runs[1::2]))
    requests = read_trace(TRACE, lengths=real.lengths, block_size=real.spec.block_size, seconds=seconds)
    plan = DeploymentPlan(machine=fit.machine, prefill=real.num_each, decode=real.num_each)
    outcome = Twin(plan, requests, CostPolicy(local_prefill_below=real.local_prefill_below)).run()
    report = Report(f"The twin compared with a real deployment: {real.title}", CALIBRATION_COLUMNS)
    compare(report, "TTFT", [each.ttft_s for each in others], [each.ttft_s for each in outcome.answered])
    tpots = [each.tpot_s for each in others if each.tpot_s is not None]
    compare(report, "TPOT", tpots, [each.tpot_s for each in outcome.answered if each.num_output_tokens > 1])
    report.notes += notes(fit, others, len(requests) * num_repeats, outcome)
    return report


def compare(report: Report, name: str, real_s: Sequence[float], simulated_s: Sequence[float]) -> None:
    """Add a row for each percentile."""
    for percent in (50, 90):
        real, simulated = float(np.percentile(real_s, percent)), float(np.percentile(simulated_s, percent))
        report.add(f"{name} p{percent}", 1e3 * real, 1e3 * simulated, simulated / real)


def notes(fit: Fit, real: Sequence[ProfiledRequest], num_sent: int, outcome: Outcome) -> list[str]:
    """Return the notes below the table."""
    num_tokens = sum(each.prompt_tokens for each in real)
    cached = sum(each.cached_tokens for each in real) / num_tokens
    remote = sum(each.prefill_worker != each.decode_worker for each in real) / len(real)
    mean_output = sum(each.output_tokens for each in real) / len(real)
    return [
        f"fitted to the first run of each pair: {fit}",
        f"{len(real)} of {num_sent} requests served, on average with {num_tokens / len(real):.0f} prompt and "
        f"{mean_output:.0f} output tokens",
        f"cached: {cached:.1%} of the prompts, simulated {outcome.cached_share:.1%}; "
        f"handed over: {remote:.1%} of the requests, simulated {outcome.remote_share:.1%}",
    ]


def chats(num_requests: int, num_workers: int, seed: int) -> list[TraceRequest]:
    """Return requests of about 2,000 prompt tokens with one of a few hundred shared prefixes, and about 200 outputs."""
    rng = random.Random(seed)
    root, due_s, requests = root_hash(), 0.0, []
    for number in range(num_requests):
        due_s += rng.expovariate(RATE_A_WORKER * num_workers)
        num_prompt = min(16_000, max(16, round(rng.lognormvariate(7.4, 0.6))))
        # A block's content is one number: first the shared blocks, then the prompt's own.
        shared = [rng.randrange(300), 1][: rng.randint(0, 2)]
        blocks = [*shared, 1000 + number, *range(40)][: num_prompt // HASH_TOKENS]
        num_output = min(2000, max(1, round(rng.lognormvariate(5.1, 0.7))))
        requests.append(TraceRequest(due_s, num_prompt, num_output, pack_hashes(root, blocks, 1)))
    return requests


def speed(num_workers: int, num_requests: int) -> Report:
    """Measure simulated requests per second of one core."""
    report = Report("Speed of the simulation", SPEED_COLUMNS)
    half = num_workers // 2
    plan = DeploymentPlan(machine=Machine().with_block_size(HASH_TOKENS), prefill=half, decode=num_workers - half)
    outcome = simulate(plan, chats(num_requests, num_workers, seed=0))
    report.add("the twin, with the real router's code", num_workers, num_requests, outcome.cpu_s,
               num_requests / outcome.cpu_s, outcome.ended_s)  # fmt: skip
    report.notes.append(f"{outcome.num_events / num_requests:.1f} events a request, {outcome.cached_share:.0%} cached")
    exact = chats(NUM_EXACT, 1, seed=0)
    started_s = time.process_time()
    ended_s = run_in_virtual_time(make_every_step(exact))
    exact_s = time.process_time() - started_s
    report.add("engines that simulate every step", 1, NUM_EXACT, exact_s, NUM_EXACT / exact_s, ended_s)
    return report


async def make_every_step(requests: Sequence[TraceRequest]) -> float:
    """Run one colocated engine with the real scheduler and no router; return the time of the last token."""
    engine, loop, rng = SimulatedEngine(WorkerSpec()), asyncio.get_running_loop(), random.Random(0)

    async def live(number: int, request: TraceRequest) -> None:
        await asyncio.sleep(request.due_s)
        token_ids = rng.choices(range(1000), k=request.num_prompt_tokens)
        simulated = SimulatedRequest(
            request_id=str(number), token_ids=token_ids, num_output_tokens=request.num_output_tokens
        )
        async for _ in engine.generate(simulated):
            pass

    await asyncio.gather(*(live(number, request) for number, request in enumerate(requests)))
    return loop.time()


@click.command()
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
@click.option("--seconds", default=60.0, show_default=True, help="Seconds of the trace in each run.")
@click.option("--repeats", default=2, show_default=True, help="Pairs of runs; one of each pair is used for fitting.")
@click.option("--simulated-workers", "is_simulated", is_flag=True, help="Use workers that compute nothing.")
@click.option("--speed", "is_speed", is_flag=True, help="Measure the speed of the simulation instead.")
@click.option("--workers", default=1000, show_default=True, help="With --speed: half of them prefill.")
@click.option("--requests", default=100_000, show_default=True, help="With --speed.")
def main(
    json_file: Path | None,
    seconds: float,
    repeats: int,
    is_simulated: bool,
    is_speed: bool,
    workers: int,
    requests: int,
) -> None:
    """Compare the simulator with a real deployment, or measure its speed."""
    real = SIMULATED if is_simulated else BUNDLED
    report = speed(workers, requests) if is_speed else calibrate(real, seconds, repeats)
    report.show()
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
