"""Decode steps of a model with the shape of Qwen3-8B, by batch and context, compared with the memory bound."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from baton.engine.outputs import SampledToken
from baton.engine.scheduling.schedule import Received
from benchmarks.gpu.engine_session import EngineSession, greedy, random_prompts, request, start_engine
from benchmarks.gpu.speed.large_model import LargeModel, ensure_large_model
from benchmarks.gpu.speed.roofline import Limits, limits_of
from benchmarks.gpu.stage import Cell, Record, Setting

BATCHES = {False: (1, 2, 4, 8, 16, 32, 64, 128, 256), True: (1, 3)}
CONTEXTS = {False: (1024, 4096), True: (64,)}
NUM_STEPS = {False: 16, True: 4}
REPEATS = 3
WARM_UP = 4
COLUMNS = (
    "batch", "context", "step ms", "tokens/s", "GPU busy ms", "host ms", "bound ms", "% of bound",
)  # fmt: skip


def kv_bytes(setting: Setting) -> int | None:
    """Return the KV cache size; None on a GPU, where the engine uses the free memory as in serving."""
    return None if setting.device.type == "cuda" else 64 << 20


def bound_s(model: LargeModel, limits: Limits, batch: int, context: int) -> float:
    """Return the bound of a step: reading all weights and KV once, or the arithmetic, whichever takes longer."""
    num_bytes = model.weight_bytes + batch * context * model.kv_bytes
    return max(num_bytes / limits.bytes_per_s, 2 * model.num_product_weights * batch / limits.flop_per_s)


def fill(session: EngineSession, batch: int, context: int, num_tokens: int) -> bool:
    """Add decoding requests whose prompts count as received, with zero KV; False if they do not fit.

    Values do not change the time of a step, so the prompts need not be prefilled.
    """
    engine = session.engine
    prompts = random_prompts([context] * batch, engine.model_config.vocab_size, seed=batch * context)
    if engine.blocks.num_blocks_for(context + num_tokens) * batch + batch > engine.blocks.cache.pool.num_free:
        return False
    for index, prompt in enumerate(prompts):
        engine.add(request(f"{batch}/{context}/{index}", prompt, greedy(num_tokens), receives_kv=True))
    schedule = session.step()
    for index, received in enumerate(schedule.receiving):  # other tokens, so that they choose other experts
        engine.end_receive(received.request_id, Received(context, SampledToken(5 + index)))
    return len(schedule.receiving) == batch


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """A kernel or copy on the device."""

    name: str
    start_us: float
    end_us: float


def device_spans(call: Callable[[], object], device: torch.device) -> list[DeviceSpan]:
    """Return all kernels and copies of a call, by their start.

    Empty if the profiler sees none: on a CPU, or without permission to use the driver's counters.
    """
    if device.type != "cuda":
        call()
        return []
    torch.cuda.synchronize(device)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize(device)
    spans = [
        DeviceSpan(event.name, event.time_range.start, event.time_range.end)
        for event in profiled.events()
        if event.device_type == DeviceType.CUDA
    ]
    return sorted(spans, key=lambda span: span.start_us)


def busy_seconds(call: Callable[[], object], device: torch.device) -> float | None:
    """Return the device time of a call, counting overlaps once; None if the profiler sees nothing."""
    busy_us, last = 0.0, float("-inf")
    for span in device_spans(call, device):
        busy_us += max(0.0, span.end_us - max(span.start_us, last))
        last = max(last, span.end_us)
    return busy_us / 1e6 or None


def measure(session: EngineSession, setting: Setting, batch: int, context: int) -> tuple[float, float | None] | None:
    """Return the time of a step and the device's busy time; None if the batch does not fit."""
    num_steps = NUM_STEPS[setting.is_quick]
    if not fill(session, batch, context, WARM_UP + (REPEATS + 1) * num_steps + 2):
        return None
    session.run_on(WARM_UP)
    times = []
    for _ in range(REPEATS):
        started_s = time.perf_counter()
        session.run_on(num_steps)  # returns when the last tokens are on the host
        times.append((time.perf_counter() - started_s) / num_steps)
    busy_s = busy_seconds(lambda: session.run_on(num_steps), setting.device)
    session.finish()
    return median(times), busy_s / num_steps if busy_s is not None else None


def row(batch: int, context: int, step_s: float, busy_s: float | None, least_s: float) -> list[Cell]:
    """Return the cells of COLUMNS. least_s: bound of a step."""
    busy: Cell = busy_s * 1e3 if busy_s is not None else ""
    host: Cell = (step_s - busy_s) * 1e3 if busy_s is not None else ""
    return [batch, context, step_s * 1e3, batch / step_s, busy, host, least_s * 1e3, 100 * least_s / step_s]


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    limits = limits_of(setting)
    model = ensure_large_model(setting)
    batches = BATCHES[setting.is_quick]
    engine = start_engine(
        model.directory,
        setting,
        kv_cache_memory_bytes=kv_bytes(setting),
        max_num_seqs=max(batches),
        max_num_batched_tokens=8192,
        max_model_len=max(CONTEXTS[setting.is_quick]) + 256,
        enable_prefix_caching=False,
    )
    session = EngineSession(engine)
    for context in CONTEXTS[setting.is_quick]:
        for batch in batches:
            measured = measure(session, setting, batch, context)
            if measured is None:
                record.note(f"{batch} requests of {context} tokens: their KV does not fit")
                continue
            step_s, busy_s = measured
            least_s = bound_s(model, limits, batch, context)
            record.add_row(COLUMNS, *row(batch, context, step_s, busy_s, least_s))
    engine.close()
