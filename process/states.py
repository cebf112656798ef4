"""States of a supervisor's processes, in a file that routers read for their reports."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from baton.settings.regular_file import open_regular

State = Literal["starting", "ready", "waiting"]  # waiting: for its next start
MAX_FILE_BYTES = 1 << 20  # a process has less than 1 KiB
MAX_NUMBER = 2**53  # floats represent all integers below, and JSON encoders accept them


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A process over its restarts; times are in seconds since 1970."""

    name: str
    state: State = "starting"
    pid: int | None = None
    num_restarts: int = 0
    num_deaths: int = 0  # in a row
    last_end: str | None = None  # text, such as "was killed by SIGKILL"
    ended_at_s: float | None = None  # time of the last end
    next_start_at_s: float | None = None

    def report(self) -> dict[str, object]:
        """Return the state as a router reports it, with times relative to now."""
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
    """Replace the file atomically. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps([asdict(state) for state in states]))
    os.replace(new, path)


def read_states(path: Path) -> list[ProcessState]:
    """Return the states in a file; none without a supervisor, after it has ended, or if the file is damaged."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_FILE_BYTES)
        states = [ProcessState(**state) for state in json.loads(content)]
    except (OSError, ValueError, TypeError, RecursionError):
        return []
    return states if all(map(_is_valid, states)) else []


def _is_valid(state: ProcessState) -> bool:
    """Return whether the values from a file have the types of their fields."""
    numbers = (state.ended_at_s, state.next_start_at_s)
    return (
        _is_text(state.name)
        and state.state in get_args(State)
        and (state.pid is None or _is_count(state.pid))
        and _is_count(state.num_restarts)
        and _is_count(state.num_deaths)
        and (state.last_end is None or _is_text(state.last_end))
        and all(each is None or (_is_number(each) and abs(each) < MAX_NUMBER) for each in numbers)
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)  # no lone surrogate


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and _is_number(value) and 0 <= value < MAX_NUMBER


RECENT_S = 600.0


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """The report of one process; fields may be missing if the router has another version."""

    process: Mapping[str, object]

    @property
    def name(self) -> str:
        """Process name: a worker's id, or router, router-0, rendezvous."""
        return str(self.process.get("name"))

    @property
    def is_down(self) -> bool:
        """Whether it died and is not ready again."""
        return self.process.get("last_end") is not None and self.process.get("state") != "ready"

    @property
    def died_recently(self) -> bool:
        """Whether it died in the last ten minutes."""
        return 0 <= self._number("last_end_s_ago") < RECENT_S

    def describe(self) -> str:
        """Return a text on its last death and its restart; empty for a process that never died."""
        if self.process.get("last_end") is None:
            return ""
        text = f"{self.name}: {self.process.get('last_end')} {self._number('last_end_s_ago'):.0f} s ago"
        if not self.is_down:
            return f"{text}, serves again; restarts: {self._number('restarts'):.0f}"
        if (num_deaths := self._number("deaths_in_a_row")) > 1:
            text += f", death {num_deaths:.0f} in a row"
        if self.process.get("state") == "waiting":
            return f"{text}; restarts in {max(0.0, self._number('next_start_in_s')):.0f} s"
        return f"{text}; is restarting"

    def _number(self, name: str) -> float:
        value = self.process.get(name)
        return float(value) if isinstance(value, int | float) else -1.0


def process_reports(content: object) -> list[ProcessReport]:
    """Return the processes of a /workers response; none without a supervisor."""
    match content:
        case {"processes": list() as processes}:
            return [ProcessReport(each) for each in processes if isinstance(each, Mapping)]
    return []
