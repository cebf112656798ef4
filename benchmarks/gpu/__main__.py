"""GPU check: compare the engine with references, then benchmark it; `--device cpu --quick` tests the check itself.

    python -m benchmarks.gpu [--device cuda] [--quick] [--only STAGE ...] [--limit-s S] [--json FILE] [--directory DIR]

Each stage runs in a separate process. Exits with 1 if a stage found a mismatch or did not finish.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu.machine import describe_gpu
from benchmarks.gpu.results import merge, show
from benchmarks.gpu.stage import Setting
from benchmarks.gpu.stage_process import run_stage
from benchmarks.gpu.stages import STAGES, Stage, stage_named

LIMIT_S = 900.0  # total of the comparisons, and of the benchmarks
LEAST_S = 5.0  # minimum time left to start a stage
SHARED_MEMORY = Path("/dev/shm")  # for a checkpoint of 16 GB
NEEDED_BYTES = 24 << 30


def stages_to_run(only: list[Stage], is_quick: bool, device: torch.device) -> list[Stage]:
    """Return the requested stages. Default: all, on a CPU without the benchmarks, which would be meaningless."""
    if only:
        return only
    return [stage for stage in STAGES if device.type == "cuda" or not stage.is_benchmark]


def working_directory() -> str | None:
    """Return the directory for files: shared memory, if it is large enough."""
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > NEEDED_BYTES:
        return str(SHARED_MEMORY)
    return None


def run_all(stages: list[Stage], setting: Setting, path: Path | None, limit_s: float) -> dict[str, dict[str, object]]:
    """Run the stages, merge each result into the file, and return all.

    limit_s: total of the comparisons, and of the benchmarks; stages for which nothing is left of it are skipped.
    """
    machine = describe_gpu(setting.device)
    print(machine, flush=True)
    results: dict[str, dict[str, object]] = {}
    left_s = {False: limit_s, True: limit_s}  # by whether a stage is a benchmark
    for stage in stages:
        timeout_s = min(stage.timeout_s, left_s[stage.is_benchmark])
        if timeout_s < LEAST_S:
            print(f"{stage.name}: skipped, no time is left", flush=True)
            continue
        started_s = time.monotonic()
        results[stage.name] = result = run_stage(stage, setting, timeout_s)
        left_s[stage.is_benchmark] -= time.monotonic() - started_s
        show(stage.name, result)
        if path is not None:
            merge(path, machine, stage.name, result)
    return results


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--quick", action="store_true", help="tiny shapes, as a smoke test")
    parser.add_argument("--only", type=stage_named, action="append", default=[], metavar="STAGE")
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
        stages = stages_to_run(arguments.only, arguments.quick, device)
        results = run_all(stages, Setting(device, arguments.quick, directory), arguments.json, arguments.limit_s)
    sys.exit(0 if len(results) == len(stages) and all(result["ok"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
