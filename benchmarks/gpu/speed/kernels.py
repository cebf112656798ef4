"""Where the time of a decode step goes: the kernels of a model with Qwen3-8B's shape, by name."""

from collections import defaultdict

from benchmarks.gpu.engine_session import EngineSession, start_engine
from benchmarks.gpu.speed.decode import WARM_UP, device_spans, fill, kv_bytes
from benchmarks.gpu.speed.large_model import ensure_large_model
from benchmarks.gpu.stage import Record, Setting

BATCHES = {False: (1, 64), True: (2,)}
CONTEXT = {False: 1024, True: 64}
NUM_STEPS = 8
MAX_ROWS = 14  # per batch
NAME_LENGTH = 100
COLUMNS = ("batch", "kernel", "launches", "us", "% of busy")  # of a step


def kernel_times(session: EngineSession, setting: Setting, batch: int, context: int) -> dict[str, list[float]]:
    """Return the microseconds of all launches of `NUM_STEPS` decode steps by kernel, the longest in total first."""
    fill(session, batch, context, WARM_UP + NUM_STEPS + 2)
    session.run_on(WARM_UP)
    times: dict[str, list[float]] = defaultdict(list)
    for span in device_spans(lambda: session.run_on(NUM_STEPS), setting.device):
        times[span.name].append(span.end_us - span.start_us)
    session.finish()
    return dict(sorted(times.items(), key=lambda item: -sum(item[1])))


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    context, batches = CONTEXT[setting.is_quick], BATCHES[setting.is_quick]
    engine = start_engine(
        ensure_large_model(setting).directory,
        setting,
        kv_cache_memory_bytes=kv_bytes(setting),
        max_num_seqs=max(batches),
        max_model_len=context + 64,
        enable_prefix_caching=False,
    )
    session = EngineSession(engine)
    for batch in batches:
        times = kernel_times(session, setting, batch, context)
        total_us = sum(map(sum, times.values())) or 1.0
        for name, each in list(times.items())[:MAX_ROWS]:
            share = 100 * sum(each) / total_us
            record.add_row(COLUMNS, batch, name[:NAME_LENGTH], len(each) / NUM_STEPS, sum(each) / NUM_STEPS, share)
    engine.close()
