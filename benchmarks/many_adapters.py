"""Time to the first token with many LoRA adapters, few of which are in memory.

    python -m benchmarks.many_adapters [--model DIRECTORY] [--adapters 200] [--in-memory 16] [--json FILE]

Clients send one request after the other. Each request names an adapter at random; popularity follows Zipf's law, the
n-th adapter is wanted 1/n times as often as the first one. Two engines with the same model in one process, one of them
with room for all adapters, get the same requests in turn. The files are in the page cache, as those of a server with
enough memory are.

- hits: requests whose adapter was in memory when they were sent
- ratio: of the median time to the first token to that with all adapters in memory, median and largest of the repeats
"""

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import click

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.loop import EngineLoop
from baton.engine.outputs import StepOutput
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from benchmarks.lora import BUNDLED, FIRST_WORD, SIZE
from benchmarks.report import Report
from tests.adapters import ALL_TARGETS, make_adapter

TIMEOUT_S = 600.0
COLUMNS = ("in memory", "hits %", "TTFT p50 ms", "p90 ms", "p99 ms", "ratio of p50", "largest ratio")


class Clients:
    """Clients of an engine, which note when its first tokens come."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine(config)
        self._loop = EngineLoop(self._engine, self._take, self._fail)
        self._firsts: dict[str, float] = {}
        self._ended: dict[str, threading.Event] = {}
        self._failure: BaseException | None = None
        self.num_hits = 0
        self._loop.start()

    def load(self, adapters: Mapping[str, Path]) -> None:
        """Register adapters."""
        for name, path in adapters.items():
            self._loop.call(partial(_load, name=name, path=path)).result(TIMEOUT_S)

    def run(self, requests: Sequence[Request], num_clients: int) -> list[float]:
        """Send requests, each client one after the other, and return the seconds to their first tokens."""
        with ThreadPoolExecutor(num_clients) as pool:
            return list(pool.map(self._send, requests))

    def _send(self, request: Request) -> float:
        self._ended[request.request_id] = threading.Event()
        started_s = time.perf_counter()
        self._loop.call(partial(self._add, request=request)).result(TIMEOUT_S)
        if not self._ended[request.request_id].wait(TIMEOUT_S) or self._failure is not None:
            raise RuntimeError(f"a request has not ended: {self._failure}")
        return self._firsts[request.request_id] - started_s

    def _add(self, engine: Engine, request: Request) -> None:
        self.num_hits += request.adapter in engine.adapters.resident()
        engine.add(request)

    def _take(self, step: StepOutput) -> None:
        for output in step.outputs:
            self._firsts.setdefault(output.request_id, time.perf_counter())
            if output.finish_reason is not None:
                self._ended[output.request_id].set()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        for event in self._ended.values():
            event.set()

    def stop(self) -> None:
        """End the engine."""
        self._loop.stop()


def _load(engine: Engine, *, name: str, path: Path) -> None:
    engine.adapters.load(name, path)


def requests_of(seed: int, count: int, num_adapters: int, prompt_len: int, num_tokens: int) -> list[Request]:
    """Return requests whose adapters are drawn by Zipf's law."""
    draw = random.Random(seed)
    names = draw.choices(range(num_adapters), [1 / (1 + place) for place in range(num_adapters)], k=count)
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    words = range(FIRST_WORD, 2 * FIRST_WORD)
    return [
        Request(
            RequestId(f"{seed}-{place}"), draw.choices(words, k=prompt_len), prompt_len, sampling, adapter=f"{name}"
        )
        for place, name in enumerate(names)
    ]


def measure(engines: Mapping[int, Clients], repeats: int, num_clients: int, report: Report, **options: int) -> None:
    """Fill the table. engines: by the number of adapters in memory, the one with all of them first."""
    times_s: dict[int, list[list[float]]] = {limit: [] for limit in engines}
    for repeat in range(repeats + 1):  # the first is a warm-up
        for limit, clients in engines.items():
            found = clients.run(requests_of(repeat, **options), num_clients)
            if repeat:
                times_s[limit].append(found)
            else:
                clients.num_hits = 0
    everything = next(iter(times_s.values()))
    for limit, found in times_s.items():
        ratios = [median(ours) / median(theirs) for ours, theirs in zip(found, everything, strict=True)]
        together = [1000 * each for repeat in found for each in repeat]
        shares = quantiles(together, n=100)
        hits = 100 * engines[limit].num_hits / len(together)
        report.add(limit, hits, median(together), shares[89], shares[98], median(ratios), max(ratios))


@contextmanager
def engines_of(
    model: Path, limits: Sequence[int], num_clients: int, rank: int, adapters: Mapping[str, Path]
) -> Iterator[dict[int, Clients]]:
    """Return an engine for each number of adapters in memory, with all adapters registered."""
    made: dict[int, Clients] = {}
    try:
        for limit in limits:
            config = EngineConfig(
                model=str(model),
                kv_cache_memory_bytes=256 << 20,
                enable_prefix_caching=False,
                enable_lora=True,
                max_loras=num_clients,
                max_lora_rank=rank,
                max_cpu_loras=limit,
            )
            made[limit] = Clients(config)
            made[limit].load(adapters)
        yield made
    finally:
        for each in made.values():
            each.stop()


@click.command()
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=BUNDLED,
    help="Checkpoint with one file of weights. Default: the bundled one, whose adapters change only the attention.",
)
@click.option("--adapters", "num_adapters", default=200, show_default=True, help="Registered adapters.")
@click.option("--in-memory", default=16, show_default=True, help="Adapters in memory (max_cpu_loras).")
@click.option("--clients", "num_clients", default=4, show_default=True, help="Requests at a time.")
@click.option("--rank", default=16, show_default=True, help="Rank of the adapters.")
@click.option("--prompt-len", default=128, show_default=True, help="Tokens of a prompt.")
@click.option("--num-tokens", default=16, show_default=True, help="Output tokens of a request.")
@click.option("--requests", "count", default=200, show_default=True, help="Requests of a repeat.")
@click.option("--repeats", default=5, show_default=True, help="Measured repeats.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(
    model: Path, num_adapters: int, in_memory: int, num_clients: int, rank: int, prompt_len: int, num_tokens: int,
    count: int, repeats: int, json_file: Path | None,
) -> None:  # fmt: skip
    """Measure requests with many LoRA adapters."""
    targets = ALL_TARGETS[:4] if read_model_config(model).moe is not None else ALL_TARGETS
    title = (
        f"{num_adapters} LoRA adapters of rank {rank}, popularity by Zipf's law, {num_clients} clients, {model.name}"
    )
    report = Report(f"{title}, prompts of {prompt_len}, {num_tokens} tokens a request", COLUMNS)
    with TemporaryDirectory() as directory:
        adapters = {
            f"{seed}": make_adapter(model, Path(directory) / f"{seed}", targets, rank=rank, seed=seed, size=SIZE)
            for seed in range(num_adapters)
        }
        with engines_of(model, (num_adapters, in_memory), num_clients, rank, adapters) as engines:
            measure(
                engines, repeats, num_clients, report,
                count=count, num_adapters=num_adapters, prompt_len=prompt_len, num_tokens=num_tokens,
            )  # fmt: skip
    report.show()
    if json_file is not None:
        report.write(json_file)


if __name__ == "__main__":
    main()
