"""Roofline of the device: measured memory bandwidth and GEMM rate."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import torch

from benchmarks.gpu.stage import Record, Setting

FILE = "roofline_limits.json"  # for later stages
COPY_BYTES = {False: 8 << 30, True: 8 << 20}
GEMM_SIZE = {False: 8192, True: 128}
COLUMNS = ("limit", "measured", "unit")


@dataclass(frozen=True, slots=True)
class Limits:
    """Measured limits of this run."""

    bytes_per_s: float  # read or written; a copy does both
    flop_per_s: float  # in the setting's dtype


def seconds_of(call: Callable[[], object], device: torch.device, repeats: int = 9) -> float:
    """Return the median seconds of a synchronous call, after two warmups."""
    times = []
    for repeat in range(repeats + 2):
        started_s = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if repeat > 1:
            times.append(time.perf_counter() - started_s)
    return median(times)


def measure(setting: Setting) -> Limits:
    """Measure copies and GEMMs."""
    device, is_quick = setting.device, setting.is_quick
    source = torch.zeros(COPY_BYTES[is_quick] // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = seconds_of(lambda: target.copy_(source), device)
    size = GEMM_SIZE[is_quick]
    matrices = [torch.randn(size, size, device=device).to(setting.dtype) for _ in range(2)]
    product = torch.empty_like(matrices[0])
    gemm_s = seconds_of(lambda: torch.mm(*matrices, out=product), device)
    return Limits(2 * source.nbytes / copy_s, 2 * size**3 / gemm_s)


def limits_of(setting: Setting) -> Limits:
    """Return the limits of this run; measure them unless an earlier stage has."""
    file = setting.directory / FILE
    if not file.exists():
        file.write_text(json.dumps(asdict(measure(setting))))
    return Limits(**json.loads(file.read_text()))


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    (setting.directory / FILE).unlink(missing_ok=True)
    limits = limits_of(setting)
    record.add_row(COLUMNS, "memory, read and written by a copy", limits.bytes_per_s / 1e12, "TB/s")
    name = f"{setting.dtype_name} product of {GEMM_SIZE[setting.is_quick]} cubed"
    record.add_row(COLUMNS, name, limits.flop_per_s / 1e12, "TFLOP/s")
