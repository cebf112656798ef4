"""`baton serve` with a model of Qwen3-8B's shape, at the client: one colocated worker, and prefill and decode apart.

Both kinds run on the one GPU, so this compares what separate pools cost, not what they gain.
"""

import asyncio
import shutil
from importlib.resources import files
from pathlib import Path

from benchmarks.gpu.engine_session import random_prompts
from benchmarks.gpu.speed.large_model import LargeModel, ensure_large_model
from benchmarks.gpu.stage import Record, Setting
from benchmarks.load import percentile, run_wave
from benchmarks.server import served

TOKENIZER = Path(str(files("baton") / "bundled_model")) / "tokenizer.json"  # any: prompts are token ids
SYSTEMS = {"colocated": ("--colocated", "1"), "1 prefill + 1 decode": ("--prefill", "1", "--decode", "1")}
BATCHES = {False: (1, 16, 64), True: (1, 2)}
CONTEXT = {False: 1024, True: 32}
NUM_TOKENS = {False: 128, True: 8}
VOCAB_SIZE = 300  # of the prompts
COLUMNS = ("system", "requests", "context", "TTFT p50 ms", "TPOT p50 ms", "TPOT p99 ms", "output tokens/s")


async def measure(record: Record, setting: Setting, model: LargeModel, system: str, flags: tuple[str, ...]) -> None:
    """Add a row for each number of concurrent requests, which is sent twice: the first wave warms up."""
    context, num_tokens = CONTEXT[setting.is_quick], NUM_TOKENS[setting.is_quick]
    flags = (*flags, "--device", str(setting.device), "--dtype", setting.dtype_name)
    async with served(str(model.directory), *flags, "--max-model-len", str(2 * (context + num_tokens))) as url:
        for batch in BATCHES[setting.is_quick]:
            for seed in (1, 2):
                prompts = random_prompts([context] * batch, VOCAB_SIZE, seed=seed * 1000 + batch)
                wave = await run_wave(url, prompts, num_tokens)
            ttfts = [each.ttft_s * 1e3 for each in wave.requests]
            tpots = [each.tpot_s * 1e3 for each in wave.requests]
            times = percentile(ttfts, 50), percentile(tpots, 50), percentile(tpots, 99)
            record.add_row(COLUMNS, system, batch, context, *times, wave.output_tokens_per_s)


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    model = ensure_large_model(setting)
    shutil.copy(TOKENIZER, model.directory)
    for system, flags in SYSTEMS.items():
        record.attempt(system, lambda: asyncio.run(measure(record, setting, model, system, flags)))  # noqa: B023
