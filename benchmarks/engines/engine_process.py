"""Client of an engine's process."""

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from baton.process.child import kill_leaderless_group
from baton.process.environment import OPENMP_SPINS
from benchmarks.engines.drivers.driver import Answer, Setting

DRIVERS = Path(__file__).parent / "drivers"
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1800.0  # of one response line
NUM_LOG_CHARACTERS = 3000
PEAK_RESET = "5"  # written to /proc/PID/clear_refs


class EngineFailed(Exception):
    """The engine failed or did not respond; the text has the end of its log."""


class EngineProcess:
    """Owner of a driver's process, pinned to some cores, and its children."""

    def __init__(
        self, python: Path, driver: str, variables: Mapping[str, str], cores: Sequence[int], log: IO[bytes]
    ) -> None:
        """`driver` is the name of a script in `drivers/`; the process's output goes to `log`."""
        self._log = log
        threads = str(len(cores))
        inherited = {name: value for name, value in os.environ.items() if name not in OPENMP_SPINS}  # for Baton only
        environment = {**inherited, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **variables}
        self._process = subprocess.Popen(
            [str(python), str(DRIVERS / f"{driver}.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            text=True, env=environment, cwd=tempfile.gettempdir(), start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),  # before any library counts the cores
        )  # fmt: skip

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the driver; the engine may have children."""
        return self._process.pid

    def load(self, setting: Setting) -> str:
        """Load the engine, and return its name and version."""
        return str(self._ask({"load": asdict(setting)})["version"])

    def run(self, prompts: Sequence[Sequence[int]], num_output_tokens: int, concurrency: int) -> list[Answer]:
        """Run `concurrency` clients until all prompts are done; return the answers in the order of the prompts."""
        run = {"prompts": prompts, "num_output_tokens": num_output_tokens, "concurrency": concurrency}
        answers = self._ask({"run": run})["answers"]
        assert isinstance(answers, list)
        return [Answer(**answer) for answer in answers]

    def reset_peak(self) -> None:
        """Reset the peak that `peak_bytes` returns."""
        for process in self._processes():
            Path(f"/proc/{process.pid}/clear_refs").write_text(PEAK_RESET)

    def peak_bytes(self) -> int:
        """Return the sum of the processes' peak resident memory."""
        return sum(_peak_bytes(process.pid) for process in self._processes())

    def close(self) -> None:
        """End the process and its children, also those of a driver that has crashed."""
        with suppress(psutil.NoSuchProcess):
            children = self._processes()[1:]
            self._process.kill()
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
        self._process.wait()
        kill_leaderless_group(self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _processes(self) -> list[psutil.Process]:
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def _ask(self, message: dict[str, object]) -> dict[str, object]:
        """Send a message and return the response. Raises EngineFailed if the engine fails, ends or times out."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        answer = json.loads(line) if line else {"error": "the process has ended"}
        if "error" in answer:
            raise EngineFailed(f"{answer['error']}\n{self._tail()}")
        return dict(answer)

    def _tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-NUM_LOG_CHARACTERS:]


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0  # the process has ended
