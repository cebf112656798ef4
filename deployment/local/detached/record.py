"""Record of a detached server, in a file that `baton ps` and `baton stop` read."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from baton.settings.regular_file import open_regular

DRAIN_TIMEOUT_S = 30.0  # of a server that has not recorded it
State = Literal["starting", "ready", "stopping"]
MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A detached server, as it reported itself last."""

    port: int
    log_path: str
    started_at_s: float  # since 1970
    state: State = "starting"
    model: str = ""  # its name for clients; empty until it is known
    url: str = ""  # empty until the server is ready
    drain_timeout_s: float = DRAIN_TIMEOUT_S  # for running requests when it shuts down


def write_record(path: Path, record: ServerRecord) -> None:
    """Replace the file atomically. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(asdict(record)), encoding="utf-8")
    os.replace(new, path)


def read_record(path: Path) -> ServerRecord | None:
    """Return the record in a file; None if there is none, or if it is damaged or of an unknown version."""
    try:
        with open_regular(path) as file:
            record = ServerRecord(**json.loads(file.read(MAX_FILE_BYTES)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    return record if _is_valid(record) else None


def _is_valid(record: ServerRecord) -> bool:
    texts = (record.log_path, record.model, record.url)
    return (
        isinstance(record.port, int)
        and isinstance(record.started_at_s, int | float)
        and isinstance(record.drain_timeout_s, int | float)
        and record.state in get_args(State)
        and all(isinstance(text, str) for text in texts)
    )
