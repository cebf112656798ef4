"""Time profile of the decode steps of Baton's engine."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec, TypeVar

import torch

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.execution.batch_builder import BatchBuilder
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.sampling.sampler import Sampler
from benchmarks.engines.drivers.driver import Setting
from benchmarks.report import Report

P = ParamSpec("P")
T = TypeVar("T")

BATCHES = (1, 64)
PROMPT_LEN = 128
NUM_STEPS = 32  # measured once for the parts and once for the operators
NUM_OPERATORS = 12
SCHEDULING, BUILDING, FORWARD, SAMPLING = "scheduling", "batch building", "model forward", "sampling"
PARTS = (FORWARD, SAMPLING, BUILDING, SCHEDULING)


class Stopwatch:
    """Seconds spent in each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def timed(self, part: str, function: Callable[P, T]) -> Callable[P, T]:
        """Wrap the function to add its time to a part."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            started_s = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - started_s

        return call


class TimedSampler:
    """A sampler under a stopwatch."""

    def __init__(self, sampler: Sampler, stopwatch: Stopwatch) -> None:
        self.draw = stopwatch.timed(SAMPLING, sampler.draw)
        self.logprobs = stopwatch.timed(SAMPLING, sampler.logprobs)
        self.described = sampler.described
        self.prompt_logprobs = sampler.prompt_logprobs


class TimedBuilder:
    """A builder of batches under a stopwatch."""

    def __init__(self, builder: BatchBuilder, stopwatch: Stopwatch) -> None:
        self.build = stopwatch.timed(BUILDING, builder.build)


def profile(checkpoint: Path, num_threads: int) -> Iterator[Report]:
    """Profile decode steps of one request and of many: the engine's parts, then torch operators of the forward."""
    torch.set_num_threads(num_threads)
    for batch in BATCHES:
        yield from _profile(checkpoint, num_threads, batch)


def _profile(checkpoint: Path, num_threads: int, batch: int) -> Iterator[Report]:
    engine = _decoding_engine(checkpoint, num_threads, batch)
    stopwatch = Stopwatch()
    watch(engine, stopwatch)
    total_s = _steps_s(engine)
    parts = Report(f"A decode step of {batch} x {PROMPT_LEN}", ("part", "ms a step", "share"))
    for part in PARTS:
        parts.add(part, 1e3 * stopwatch.seconds[part] / NUM_STEPS, stopwatch.seconds[part] / total_s)
    rest_s = total_s - sum(stopwatch.seconds.values())
    parts.add("the rest", 1e3 * rest_s / NUM_STEPS, rest_s / total_s)
    parts.add("all", 1e3 * total_s / NUM_STEPS, 1.0)
    yield parts
    yield _operators(engine, batch)
    engine.close()


def watch(engine: Engine, stopwatch: Stopwatch) -> None:
    """Wrap the parts of an engine with the stopwatch."""
    runner, scheduler, model = engine.runner, engine.scheduler, engine.runner.model
    for owner, name, part in (
        (scheduler, "schedule", SCHEDULING),
        (scheduler, "update", SCHEDULING),
        (runner, "_logits_rows", BUILDING),
        (model, "forward", FORWARD),
    ):
        setattr(owner, name, stopwatch.timed(part, getattr(owner, name)))
    setattr(runner, "sampler", TimedSampler(runner.sampler, stopwatch))  # noqa: B010  # of another type, like the next
    setattr(runner, "_builder", TimedBuilder(runner._builder, stopwatch))  # noqa: B010


def _decoding_engine(checkpoint: Path, num_threads: int, batch: int) -> Engine:
    """Return an engine whose requests are decoding, with more tokens left than are measured."""
    config = read_model_config(checkpoint)
    num_output_tokens = 2 * NUM_STEPS + batch  # some are produced while other prompts are prefilled
    setting = Setting(str(checkpoint), "bf16", "bf16", num_threads, batch, PROMPT_LEN + num_output_tokens, False)
    engine_config = EngineConfig(model=setting.model, device="cpu", num_threads=num_threads)
    block_bytes = KVCacheLayout.of(config, engine_config.block_size).block_bytes
    num_blocks = setting.num_kv_tokens // engine_config.block_size + 2 * batch
    engine = Engine(
        EngineConfig(
            model=setting.model,
            device="cpu",
            num_threads=num_threads,
            kv_cache_memory_bytes=num_blocks * block_bytes,
            max_model_len=setting.max_model_len,
            enable_prefix_caching=False,
        )
    )
    rng = random.Random(0)
    for number in range(batch):
        prompt = [rng.randrange(config.vocab_size) for _ in range(PROMPT_LEN)]
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_output_tokens)
        engine.add(Request(RequestId(str(number)), prompt, PROMPT_LEN, sampling))
    while len(engine.scheduler.waiting) or any(not request.num_output_tokens for request in engine.scheduler.running):
        engine.run(engine.schedule())
    return engine


def _steps_s(engine: Engine) -> float:
    started_s = time.perf_counter()
    for _ in range(NUM_STEPS):
        engine.run(engine.schedule())
    return time.perf_counter() - started_s


def _operators(engine: Engine, batch: int) -> Report:
    """Return torch profiler results. The profiler adds overhead; compiled code outside torch counts as the rest."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        total_s = _steps_s(engine)
    columns = ("operator", "calls a step", "ms a step", "share")
    report = Report(f"Operators of a decode step of {batch} x {PROMPT_LEN}, profiler on", columns)
    events = sorted(profiler.key_averages(), key=lambda event: event.self_cpu_time_total, reverse=True)
    rest_s = total_s
    for event in events[:NUM_OPERATORS]:
        seconds = event.self_cpu_time_total / 1e6
        rest_s -= seconds
        report.add(event.key, event.count / NUM_STEPS, 1e3 * seconds / NUM_STEPS, seconds / total_s)
    report.add("the rest", "", 1e3 * rest_s / NUM_STEPS, rest_s / total_s)
    return report
