"""GPU check: compare the engine with references, then benchmark it; `--device cpu --quick` tests the check itself.

    python -m benchmarks.gpu [--device cuda] [--quick] [--only STAGE ...] [--jobs N] [--limit-s S] [--json FILE]
        [--directory DIR]

Each stage runs in a separate process. Exits with 1 if a stage found a mismatch or did not finish. If it is interrupted
(SIGINT, SIGTERM), running stages are ended, and what they have found so far is kept.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

import torch

from benchmarks.gpu.machine import GpuMachine, describe_gpu
from benchmarks.gpu.results import merge, show
from benchmarks.gpu.stage import Setting
from benchmarks.gpu.stage_process import run_stage
from benchmarks.gpu.stages import STAGES, Stage, stage_named

LIMIT_S = 900.0  # total of the comparisons, and of the benchmarks
LEAST_S = 5.0  # minimum time left to start a stage
SHARED_MEMORY = Path("/dev/shm")  # for checkpoints: of 16 GB in bf16, 9 GB in FP8, and 16 GB with experts
NEEDED_BYTES = 44 << 30


def stages_to_run(only: list[Stage], device: torch.device) -> list[Stage]:
    """Return the requested stages. Default: all, on a CPU without the benchmarks, which would be meaningless."""
    if only:
        return only
    return [stage for stage in STAGES if device.type == "cuda" or not stage.is_benchmark]


def working_directory() -> str | None:
    """Return the directory for files: shared memory, if it is large enough."""
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > NEEDED_BYTES:
        return str(SHARED_MEMORY)
    return None


@dataclass(frozen=True, slots=True)
class Check:
    """A run of several stages, each of whose results is merged into the file as soon as it is there."""

    setting: Setting
    machine: GpuMachine
    path: Path | None  # of the file
    num_jobs: int = 1  # comparisons that run at a time; benchmarks run alone
    stop: Event = field(default_factory=Event)  # set if the check must end at once
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def run(self, stages: Sequence[Stage], limit_s: float) -> None:
        """Run the comparisons, and then the benchmarks.

        limit_s: of the comparisons, and of the benchmarks; stages for which nothing is left of it are skipped.
        """
        for are_benchmarks in (False, True):
            chosen, num_jobs = [each for each in stages if each.is_benchmark == are_benchmarks], self.num_jobs
            run = partial(self._run_stage, deadline_s=time.monotonic() + limit_s)
            with ThreadPoolExecutor(1 if are_benchmarks else num_jobs) as threads:
                list(threads.map(run, chosen))

    def _run_stage(self, stage: Stage, deadline_s: float) -> None:
        timeout_s = min(stage.timeout_s, deadline_s - time.monotonic())
        if timeout_s < LEAST_S or self.stop.is_set():
            print(f"{stage.name}: skipped, {'interrupted' if self.stop.is_set() else 'no time is left'}", flush=True)
            return
        is_alone = stage.is_benchmark or self.num_jobs == 1
        num_threads = 0 if is_alone else max(1, (os.cpu_count() or 1) // self.num_jobs)
        result = run_stage(stage, self.setting, timeout_s, self.stop, num_threads)
        with self._lock:
            self.results[stage.name] = result
            show(stage.name, result)
            if self.path is not None:
                merge(self.path, self.machine, stage.name, result)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--quick", action="store_true", help="tiny shapes, as a smoke test")
    parser.add_argument("--only", type=stage_named, action="append", default=[], metavar="STAGE")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="comparisons that run at a time")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="seconds for the comparisons, and as many for the benchmarks"
    )
    parser.add_argument("--json", type=Path, help="merge the results into this file")
    parser.add_argument("--directory", type=Path, help="directory for checkpoints and logs; default: temporary")
    arguments = parser.parse_args()
    device: torch.device = arguments.device
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu --quick tries the check without one")
    with tempfile.TemporaryDirectory(prefix="baton-gpu-", dir=working_directory()) as temporary:
        directory = arguments.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        stages = stages_to_run(arguments.only, device)
        check = Check(Setting(device, arguments.quick, directory), describe_gpu(device), arguments.json, arguments.jobs)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: check.stop.set())
        print(check.machine, flush=True)
        check.run(stages, arguments.limit_s)
    sys.exit(0 if len(check.results) == len(stages) and all(each["ok"] for each in check.results.values()) else 1)


if __name__ == "__main__":
    main()
