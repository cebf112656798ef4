"""Decode step time of other engines, from the difference between long and short outputs."""

import time
from collections.abc import Callable

from benchmarks.gpu.engine_session import random_prompts
from benchmarks.gpu.stage import Record, Setting

BATCHES = {False: (1, 16, 64), True: (1, 2)}
CONTEXT = {False: 1024, True: 32}
SHORT, LONG = 8, 72  # output tokens
COLUMNS = ("batch", "context", "step ms", "tokens/s")

Generate = Callable[[list[list[int]], int], object]  # prompts, output tokens of each


def measure_peer(record: Record, setting: Setting, generate: Generate, vocab_size: int) -> None:
    """Add a row for each batch, with uncached prompts."""
    context = CONTEXT[setting.is_quick]
    for batch in BATCHES[setting.is_quick]:
        times = []
        for num_tokens, seed in ((SHORT, 1), (SHORT, 2), (LONG, 3)):  # the first warms up
            prompts = random_prompts([context] * batch, vocab_size, seed=seed * 1000 + batch)
            started_s = time.perf_counter()
            generate(prompts, num_tokens)
            times.append(time.perf_counter() - started_s)
        step_s = (times[2] - times[1]) / (LONG - SHORT)
        record.add_row(COLUMNS, batch, context, step_s * 1e3, batch / step_s)
