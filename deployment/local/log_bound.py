"""Bound on the size of the logs of a cluster's processes."""

import asyncio
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

PERIOD_S = 1.0
OLDER = ".1"  # suffix of a log's earlier part

logger = logging.getLogger(__name__)


class LogBound:
    """Moves what a log has into FILE.1 once it is larger than the bound, and empties the log.

    The processes write to the files directly, so that the output of a crash is in them, and have them open for
    appending. A file is therefore copied and truncated, not renamed. Lines that are written between the last
    copy and the truncation are lost; that is microseconds.
    """

    def __init__(self, paths: Iterable[Path], max_bytes: int) -> None:
        self._paths = tuple(paths)
        self._max_bytes = max_bytes
        self._failed: set[Path] = set()  # logged once

    async def run(self) -> None:
        """Check the logs until cancelled."""
        while True:
            await asyncio.to_thread(self.check)
            await asyncio.sleep(PERIOD_S)

    def check(self) -> None:
        """Move what is too large. A failure, as on a full disk, is logged once and tried again."""
        for path in self._paths:
            try:
                if path.stat().st_size > self._max_bytes:
                    rotate(path)
            except FileNotFoundError:
                continue  # the process has not started yet
            except OSError as error:
                if path not in self._failed:
                    logger.warning("cannot shorten %s: %s", path, error)
                self._failed.add(path)


def rotate(path: Path) -> None:
    """Replace FILE.1 by a copy of the file, and empty the file. Raises OSError."""
    older = path.with_name(path.name + OLDER)
    with path.open("rb") as log, older.open("wb") as copy:
        shutil.copyfileobj(log, copy)
        while (more := log.read()) != b"":
            copy.write(more)
    os.truncate(path, 0)
