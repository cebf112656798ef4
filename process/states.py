"""The states of a supervisor's processes, in a file from which routers report them."""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process over its lives; times are in seconds since 1970."""

    name: str
    state: Literal["starting", "ready", "waiting"] = "starting"  # waiting: for its next start
    pid: int | None = None
    num_restarts: int = 0
    num_deaths: int = 0  # in a row
    last_end: str | None = None  # in words
    ended_at_s: float | None = None  # the last life
    next_start_at_s: float | None = None

    def report(self) -> dict[str, object]:
        """Return the state as a router reports it, with times from now on instead of dates."""
        now_s = time.time()
        return {
            "name": self.name,
            "state": self.state,
            "pid": self.pid,
            "restarts": self.num_restarts,
            "deaths_in_a_row": self.num_deaths,
            "last_end": self.last_end,
            "last_end_s_ago": None if self.ended_at_s is None else round(now_s - self.ended_at_s, 1),
            "next_start_in_s": None if self.next_start_at_s is None else round(self.next_start_at_s - now_s, 1),
        }


def write_states(path: Path, states: Iterable[ProcessState]) -> None:
    """Replace the file as a whole. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps([asdict(state) for state in states]))
    os.replace(new, path)


def read_states(path: Path) -> list[ProcessState]:
    """Return the states in a file; none without a supervisor, or once that has ended."""
    try:
        return [ProcessState(**state) for state in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):
        return []
