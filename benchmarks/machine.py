"""Description of the benchmark machine, and its physical limits, measured in the same run."""

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
    """Machine description stored with every result."""

    cpu: str
    num_cores: int
    memory_gib: int
    system: str
    python: str
    torch: str


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Upper bounds of any engine on this machine."""

    read_bytes_per_s: float  # memory bandwidth of all cores
    gemm_flop_per_s: float  # of all cores, in the model's dtype


def describe() -> MachineInfo:
    """Describe this machine."""
    return MachineInfo(
        cpu=_cpu_name(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / 2**30),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
    )


def measure_limits(dtype: torch.dtype, num_threads: int) -> MachineLimits:
    """Return medians of a few reads of a large buffer, and of a few square GEMMs."""
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
