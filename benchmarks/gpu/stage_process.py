"""Separate process of a stage, so that a hang or crash does not affect other stages.

python -m benchmarks.gpu.stage_process NAME --device cuda --directory DIR --result FILE [--quick]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import torch

from benchmarks.gpu.fallbacks import watch
from benchmarks.gpu.stage import Record, Setting
from benchmarks.gpu.stages import Stage, stage_named

NUM_LOG_CHARACTERS = 4000
TERMINATION_S = 5.0  # for the processes that a stage started
POLL_S = 0.2


def run_stage(stage: Stage, setting: Setting, timeout_s: float, stop: Event, num_threads: int = 0) -> dict[str, Any]:
    """Run the stage, and return its record, with `error` if it did not finish.

    stop: set if the stage must end at once; num_threads: of its computation on the CPU; 0: torch's default.
    """
    name = stage.name.replace(" ", "_")
    result, log = setting.directory / f"{name}.json", setting.directory / f"{name}.log"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", __spec__.name, stage.name, "--device", str(setting.device)]
    command += ["--directory", str(setting.directory), "--result", str(result), *["--quick"] * setting.is_quick]
    environment = os.environ | ({"OMP_NUM_THREADS": str(num_threads)} if num_threads else {})
    started_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
        try:
            error = _wait(process, timeout_s, stop)
        finally:
            _end_group(process)
    kept = json.loads(result.read_text()) if result.exists() else Record().as_json()
    kept["seconds"] = round(time.monotonic() - started_s, 1)
    if error is not None:
        kept |= {"ok": False, "error": error}
    if not kept["ok"]:
        kept["log"] = log.read_text(errors="replace")[-NUM_LOG_CHARACTERS:]
    return kept


def _wait(process: "subprocess.Popen[bytes]", timeout_s: float, stop: Event) -> str | None:
    """Wait for the end of a stage's process; returns what went wrong."""
    deadline_s = time.monotonic() + timeout_s
    while (left_s := deadline_s - time.monotonic()) > 0:
        if stop.is_set():
            return "was interrupted"
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(min(POLL_S, left_s))
            return None if code == 0 else f"ended with {code}"
    return f"did not end within {timeout_s:g} s"


def _end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the stage's process group."""
    with suppress(ProcessLookupError):  # all of it may have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(TERMINATION_S)


def main() -> None:
    """Run a stage in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=stage_named)
    parser.add_argument("--device", type=torch.device, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    record = Record(arguments.result)
    if arguments.device.type == "cuda":
        watch(record)
    arguments.stage.run(Setting(arguments.device, arguments.quick, arguments.directory), record)
    record.is_finished = True
    record.write()


if __name__ == "__main__":
    main()
