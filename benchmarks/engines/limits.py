"""The machine's limits for each weight dtype."""

import time
from dataclasses import replace
from statistics import median

import torch

from benchmarks.machine import GEMM_SIZE, MachineLimits, measure_limits

REPEATS = 7
ZERO_POINT = 128  # of unsigned activations


def measure_all_limits(num_threads: int) -> dict[str, MachineLimits]:
    """Measure the limits for bf16 and int8 with this many threads."""
    plain = measure_limits(torch.bfloat16, num_threads)
    return {"bf16": plain, "int8": replace(plain, gemm_flop_per_s=_int8_rate())}


def _int8_rate() -> float:
    """Return the operations per second of torch's fastest int8 GEMM on a CPU: oneDNN's with packed weights."""
    weight = torch.randint(-127, 128, (GEMM_SIZE, GEMM_SIZE), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, None)
    scales, zeros = torch.ones(GEMM_SIZE), torch.zeros(GEMM_SIZE, dtype=torch.int32)
    x = torch.randint(0, 256, (GEMM_SIZE, GEMM_SIZE), dtype=torch.uint8)
    times = []
    for _ in range(1 + REPEATS):
        started_s = time.perf_counter()
        torch.ops.onednn.qlinear_pointwise(
            x, 1.0, ZERO_POINT, packed, scales, zeros, None, 1.0, 0, torch.bfloat16, "none", [], ""
        )
        times.append(time.perf_counter() - started_s)
    return 2 * GEMM_SIZE**3 / median(times[1:])
