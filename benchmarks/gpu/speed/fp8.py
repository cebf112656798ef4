"""Decode steps with FP8 weights compared with unquantised ones in the same run, and the quantisation of tokens."""

import gc
from collections.abc import Callable
from functools import partial

import torch

from baton.engine.layers.fp8_tokens.quantise import Quantise, quantise_in_torch, quantise_kernel
from baton.engine.layers.weights.fp8_weight import BLOCK, products_on
from benchmarks.gpu.engine_session import EngineSession, start_engine
from benchmarks.gpu.numerics.fp8_checkpoint import BLOCKS, ROWS
from benchmarks.gpu.speed.decode import bound_s, kv_bytes, measure
from benchmarks.gpu.speed.fp8_products import note_products
from benchmarks.gpu.speed.kernels import NUM_STEPS, kernel_times
from benchmarks.gpu.speed.large_fp8_model import ensure_large_fp8_model
from benchmarks.gpu.speed.large_model import LargeModel, ensure_large_model
from benchmarks.gpu.speed.roofline import Limits, limits_of, seconds_of
from benchmarks.gpu.stage import Record, Setting

BATCHES = {False: (1, 8, 64), True: (1, 3)}
CONTEXT = {False: 1024, True: 64}
GPU_KV_BYTES = 12 << 30  # of the largest batch
TOKENS = {False: (1, 64, 2048), True: (1, 5)}
SIZES = {False: (4096, 12288), True: (256,)}
NUM_CALLS = 50  # in a CUDA graph
NUM_KERNELS, NAME_LENGTH = 6, 80  # in a note
COLUMNS = (
    "weights", "batch", "context", "step ms", "tokens/s", "GPU busy ms", "bound ms", "% of bound",
)  # fmt: skip

Steps = dict[int, float]  # seconds of a step by batch


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    if not products_on(setting.device).of_rows:
        record.note(f"{setting.device} has no FP8 products: the weights are dequantised, and the times mean nothing")
    record.attempt("quantisation of tokens", lambda: note_quantisation(setting, record))
    record.attempt("products of few tokens", lambda: note_products(setting, record))
    limits, found = limits_of(setting), dict[str, Steps]()
    models: dict[str, Callable[[], LargeModel]] = {
        f"FP8, {stored.name}": partial(ensure_large_fp8_model, setting, stored) for stored in (ROWS, BLOCKS)
    }
    models[setting.dtype_name] = partial(ensure_large_model, setting)
    for weights, ensure in models.items():

        def decode(weights: str = weights, ensure: Callable[[], LargeModel] = ensure) -> None:
            found[weights] = measure_steps(setting, record, weights, ensure(), limits)

        record.attempt(f"decode, {weights}", decode)
        gc.collect()  # the engine's memory, for the next one
        if setting.device.type == "cuda":
            torch.cuda.empty_cache()
    base = found.pop(setting.dtype_name, {})
    for weights, steps in found.items():
        ratios = ", ".join(f"{base[batch] / step_s:.2f} at {batch}" for batch, step_s in steps.items() if batch in base)
        record.note(f"{weights}: times as fast as {setting.dtype_name}, by requests: {ratios}")


def measure_steps(setting: Setting, record: Record, weights: str, model: LargeModel, limits: Limits) -> Steps:
    """Add a row for each batch and a note on its kernels."""
    batches, context = BATCHES[setting.is_quick], CONTEXT[setting.is_quick]
    engine = start_engine(
        model.directory,
        setting,
        kv_cache_memory_bytes=GPU_KV_BYTES if setting.device.type == "cuda" else kv_bytes(setting),
        max_num_seqs=max(batches),
        max_num_batched_tokens=2048,
        max_model_len=context + 256,
        enable_prefix_caching=False,
    )
    session, steps = EngineSession(engine), Steps()
    for batch in batches:
        measured = measure(session, setting, batch, context)
        if measured is None:
            record.note(f"{batch} requests of {context} tokens: their KV does not fit")
            continue
        (step_s, busy_s), least_s = measured, bound_s(model, limits, batch, context)
        busy = busy_s * 1e3 if busy_s is not None else ""
        steps[batch] = step_s
        record.add_row(
            COLUMNS, weights, batch, context, step_s * 1e3, batch / step_s, busy, least_s * 1e3, 100 * least_s / step_s
        )
        kernels = list(kernel_times(session, setting, batch, context).items())[:NUM_KERNELS]
        shares = [
            f"{sum(us) / NUM_STEPS:.0f} us in {len(us) / NUM_STEPS:g} {name[:NAME_LENGTH]}" for name, us in kernels
        ]
        record.note(f"{weights}, {batch} requests, kernels of a step: {'; '.join(shares) or 'not seen'}")
    engine.close()
    return steps


def note_quantisation(setting: Setting, record: Record) -> None:
    """Note the times of the kernel and of torch's operations, on tokens in the GPU's cache as in a decode step."""
    ways: dict[str, Quantise] = {"torch": quantise_in_torch}
    if setting.device.type == "cuda" and (kernel := quantise_kernel(setting.device)) is not None:
        ways = {"kernel": kernel} | ways
    for num_tokens in TOKENS[setting.is_quick]:
        for size in SIZES[setting.is_quick]:
            x = torch.randn(num_tokens, size, device=setting.device).bfloat16()
            for width in (size, BLOCK):
                num_bytes = x.nbytes + x.numel() + 4 * num_tokens * size // width
                times = {
                    name: seconds_in_graph(partial(way, x, width, num_tokens), setting) for name, way in ways.items()
                }
                shown = [f"{name} {s * 1e6:.1f} us ({num_bytes / s / 1e9:.0f} GB/s)" for name, s in times.items()]
                record.note(f"quantising {num_tokens} x {size}, scales per {width}: {', '.join(shown)}")


def seconds_in_graph(call: Callable[[], object], setting: Setting) -> float:
    """Return the seconds of a call without launches from the host, if the device records CUDA graphs."""
    if setting.device.type != "cuda":
        return seconds_of(call, setting.device)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(NUM_CALLS):
            call()
    return seconds_of(graph.replay, setting.device) / NUM_CALLS
