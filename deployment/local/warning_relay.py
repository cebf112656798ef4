"""Relay of warnings from the processes' logs to the cluster's listener, because few users read the logs."""

import asyncio
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from baton.deployment.local.events import Listener, Warned
from baton.process.log_record import LogRecord, read_record

PERIOD_S = 0.5
MAX_READ_BYTES = 1 << 20  # of a log at once; the rest is read next time
MAX_WARNINGS = 20  # relayed in total
MAX_CHARS = 400  # of one warning
RELAYED_LEVELS = ("WARNING", "ERROR", "CRITICAL")
# The reason why a process ended is in the Died event; Python's warnings are for developers.
IGNORED_LOGGERS = ("baton.process.entry", "py.warnings")
LOGGER_PREFIX = "baton."
NUMBERS = re.compile(r"[0-9a-f-]{8,}|\d+")  # ids and counts, in which otherwise equal warnings differ


def _is_relayed(record: LogRecord) -> bool:
    is_ours = record.logger.startswith(LOGGER_PREFIX) and record.logger not in IGNORED_LOGGERS
    return is_ours and record.level in RELAYED_LEVELS


@dataclass(slots=True)
class FollowedLog:
    """Log file of one process, and the read offset."""

    name: str
    path: Path
    offset: int

    def new_lines(self) -> list[str]:
        """Return the complete lines written since the last call."""
        try:
            with self.path.open("rb") as log:
                if log.seek(0, os.SEEK_END) < self.offset:
                    self.offset = 0  # it was truncated by log rotation
                log.seek(self.offset)
                text = log.read(MAX_READ_BYTES)
        except OSError:
            return []  # the process has not started yet
        end = len(text) if len(text) == MAX_READ_BYTES and b"\n" not in text else text.rfind(b"\n") + 1
        self.offset += end
        return text[:end].decode(errors="replace").splitlines()


class WarningRelay:
    """Relay of each distinct warning, once. Warnings that differ only in numbers count as equal."""

    def __init__(self, logs: Iterable[tuple[str, Path]], listener: Listener) -> None:
        """`logs` has process names and log paths. Lines already in a log are not relayed."""
        self._logs = [FollowedLog(name, path, path.stat().st_size if path.exists() else 0) for name, path in logs]
        self._listener = listener
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Relay until cancelled."""
        while True:
            self.poll()
            await asyncio.sleep(PERIOD_S)

    def poll(self) -> None:
        """Relay the new warnings."""
        for log in self._logs:
            for line in log.new_lines():
                record = read_record(line)
                if record is not None and _is_relayed(record):
                    named = f"[{record.request_id}] " if record.request_id else ""
                    self._relay(log.name, named + record.text.partition("\n")[0])

    def _relay(self, name: str, message: str) -> None:
        kind = NUMBERS.sub("#", message)
        if kind in self._seen or len(self._seen) > MAX_WARNINGS:
            return
        self._seen.add(kind)
        if len(self._seen) > MAX_WARNINGS:
            message = "further warnings are only in the logs"
        # Control characters, which may come from a client, must not reach the terminal.
        self._listener(Warned(name, "".join(char if char.isprintable() else "?" for char in message[:MAX_CHARS])))
