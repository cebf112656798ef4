"""File with the state of every supervised process."""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from baton.deployment.local.events import Died, Event, Progressed, Started
from baton.process.progress import Ready
from baton.process.states import ProcessState, write_states

logger = logging.getLogger(__name__)

STATES_FILE = "processes.json"


class StatesWriter:
    """Owner of the file, which the cluster's routers read. Rewrites it whenever a process changes state."""

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self._path = path
        self._states = {name: ProcessState(name) for name in names}
        self._write()

    def update(self, event: Event) -> None:
        """Apply an event, and write the file if a state has changed."""
        if not isinstance(event, Started | Died | Progressed) or event.name not in self._states:
            return
        state = self._states[event.name]
        match event:
            case Started(_, life, pid):
                state = replace(state, state="starting", pid=pid, num_restarts=life - 1, next_start_at_s=None)
            case Progressed(_, Ready()):
                state = replace(state, state="ready")
            case Died(_, reason, restart_in_s, num_deaths):
                now_s = time.time()
                state = replace(
                    state,
                    state="waiting",
                    pid=None,
                    num_deaths=num_deaths,
                    last_end=reason,
                    ended_at_s=now_s,
                    next_start_at_s=now_s + restart_in_s,
                )
        if state != self._states[event.name]:
            self._states[event.name] = state
            self._write()

    def close(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        try:
            write_states(self._path, self._states.values())
        except OSError as error:  # a full disk must not stop the cluster
            logger.warning("cannot write %s: %s", self._path, error)
