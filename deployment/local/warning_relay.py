"""Warnings in the logs of a cluster's processes, relayed to its listener, since few users read the logs."""

import asyncio
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from baton.deployment.local.events import Listener, Warned

PERIOD_S = 0.5
MAX_READ_BYTES = 1 << 20  # of a log at once; what is beyond it follows
MAX_WARNINGS = 20  # of a cluster's life
MAX_CHARS = 400  # of one warning
# A record as process/logs.py formats it: time, level, process, logger, message.
RECORD = re.compile(r"\S+Z (?:WARNING|ERROR|CRITICAL) +\S+ (?P<logger>\S+): (?P<message>.+)")
# The reason for an end is in the event of the process's death; Python's warnings are for developers.
LEFT_OUT = ("baton.process.entry", "py.warnings")
OURS = "baton."
NUMBERS = re.compile(r"[0-9a-f-]{8,}|\d+")  # of requests and connections, which differ in warnings that are alike


@dataclass(slots=True)
class FollowedLog:
    """The log of one process, and how far it has been read."""

    name: str
    path: Path
    offset: int

    def new_lines(self) -> list[str]:
        """Return the whole lines written since the last call."""
        try:
            with self.path.open("rb") as log:
                if log.seek(0, os.SEEK_END) < self.offset:
                    self.offset = 0  # it was rotated: emptied in place
                log.seek(self.offset)
                text = log.read(MAX_READ_BYTES)
        except OSError:
            return []  # the process has not started yet
        end = len(text) if len(text) == MAX_READ_BYTES and b"\n" not in text else text.rfind(b"\n") + 1
        self.offset += end
        return text[:end].decode(errors="replace").splitlines()


class WarningRelay:
    """Owns how far each log has been read, and which warnings were relayed: each once, whatever its numbers are."""

    def __init__(self, logs: Iterable[tuple[str, Path]], listener: Listener) -> None:
        """logs: names of processes and their logs, of which only what is written from now on counts."""
        self._logs = [FollowedLog(name, path, path.stat().st_size if path.exists() else 0) for name, path in logs]
        self._listener = listener
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Relay until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(PERIOD_S)

    def look(self) -> None:
        """Relay the new warnings."""
        for log in self._logs:
            for line in log.new_lines():
                record = RECORD.fullmatch(line)
                if record is not None and record["logger"].startswith(OURS) and record["logger"] not in LEFT_OUT:
                    self._relay(log.name, record["message"])

    def _relay(self, name: str, message: str) -> None:
        kind = NUMBERS.sub("#", message)
        if kind in self._seen or len(self._seen) > MAX_WARNINGS:
            return
        self._seen.add(kind)
        if len(self._seen) > MAX_WARNINGS:
            message = "further warnings are only in the logs"
        # Control characters, which may be a client's, must not reach the terminal.
        self._listener(Warned(name, "".join(char if char.isprintable() else "?" for char in message[:MAX_CHARS])))
