"""Single prefills of a model with the shape of Qwen3-8B, compared with the rate of large GEMMs."""

import time

from benchmarks.gpu.engine_session import EngineSession, greedy, random_prompts, start_engine
from benchmarks.gpu.speed.decode import kv_bytes
from benchmarks.gpu.speed.large_model import ensure_large_model
from benchmarks.gpu.speed.roofline import limits_of
from benchmarks.gpu.stage import Record, Setting

PROMPT_LENS = {False: (2048, 8192, 32768), True: (64, 128)}
REPEATS = 3
COLUMNS = ("prompt", "ms", "tokens/s", "TFLOP/s", "% of product rate")


def seconds(session: EngineSession, prompt: list[int], name: str) -> float:
    """Return the seconds from the request to its first and only token."""
    started_s = time.perf_counter()
    session.add(name, prompt, greedy(1))
    session.finish()
    return time.perf_counter() - started_s


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    limits = limits_of(setting)
    model = ensure_large_model(setting)
    lens = PROMPT_LENS[setting.is_quick]
    engine = start_engine(
        model.directory,
        setting,
        kv_cache_memory_bytes=kv_bytes(setting),
        max_num_batched_tokens=8192,
        max_model_len=max(lens) + 64,
        enable_prefix_caching=False,
    )
    session = EngineSession(engine)
    for length in lens:
        prompts = random_prompts([length] * (REPEATS + 1), engine.model_config.vocab_size, seed=length)
        times = [seconds(session, prompt, f"{length}/{index}") for index, prompt in enumerate(prompts)][1:]
        best_s = sorted(times)[len(times) // 2]
        flop_per_s = model.prefill_flops(length) / best_s
        share = 100 * flop_per_s / limits.flop_per_s
        record.add_row(COLUMNS, length, best_s * 1e3, length / best_s, flop_per_s / 1e12, share)
    engine.close()
