"""The machine that a benchmark ran on, and its physical limits, measured in the same run."""

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
import torch

READ_BYTES = 256 << 20
GEMM_SIZE = 1536


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """What stands beside every result."""

    cpu: str
    num_cores: int
    memory_gib: int
    system: str
    python: str
    torch: str


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What no engine on this machine can exceed."""

    read_bytes_per_s: float  # of memory, all cores together
    gemm_flop_per_s: float  # in the model's dtype, all cores together


def describe() -> MachineInfo:
    """This machine."""
    return MachineInfo(
        cpu=_cpu_name(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
    )


def measure_limits(dtype: torch.dtype, num_threads: int) -> MachineLimits:
    """Median of a few reads of a large buffer, and of a few square matrix products."""
    torch.set_num_threads(num_threads)
    buffer = torch.ones(READ_BYTES // 8, dtype=torch.float64)
    read_s = _median_s(lambda: buffer.sum())
    matrix = torch.randn(GEMM_SIZE, GEMM_SIZE).to(dtype)
    gemm_s = _median_s(lambda: matrix @ matrix)
    return MachineLimits(READ_BYTES / read_s, 2 * GEMM_SIZE**3 / gemm_s)


def _median_s(call: Callable[[], object], repeats: int = 7) -> float:
    call()
    times = []
    for _ in range(repeats):
        started_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - started_s)
    return median(times)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
