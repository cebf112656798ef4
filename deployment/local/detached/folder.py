"""Folder of one detached server, by its name: the lock that it holds, its record and its logs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton.deployment.local.detached.record import ServerRecord, read_record
from baton.process.process_lock import lock_holder
from baton.process.state_directory import make_state_directory, state_directory

SERVERS = "servers"
SERVE_LOG = "serve.log"  # output of the process that supervises the others
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
NAME_RULE = "1 to 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit"


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """Paths of a detached server's files. They stay after its end, so that its logs can be read."""

    path: Path

    @classmethod
    def named(cls, name: str, environment: Mapping[str, str]) -> "ServerFolder":
        """Return the folder of the server with this name, which must match NAME."""
        return cls(state_directory(environment) / SERVERS / name)

    @property
    def name(self) -> str:
        """Name of the server."""
        return self.path.name

    @property
    def lock_path(self) -> Path:
        """The file that the server locks. It is never removed: another process may be about to lock it."""
        return self.path / "lock"

    @property
    def record_path(self) -> Path:
        """The file with the server's record."""
        return self.path / "server.json"

    @property
    def signalled_path(self) -> Path:
        """The file with the id and start of the last server process that was sent a signal to shut down."""
        return self.path / "signalled"

    @property
    def log_dir(self) -> Path:
        """Default directory for the logs."""
        return self.path / "logs"

    def make(self) -> None:
        """Make the folder, private to the user. Raises OSError."""
        make_state_directory(self.path, self.path.parents[1])

    def holder(self) -> int | None:
        """Return the server's process id, or None if it does not run; 0 or less if it runs in another container."""
        return lock_holder(self.lock_path)

    def record(self) -> ServerRecord | None:
        """Return the server's record, which a killed server leaves behind."""
        return read_record(self.record_path)

    def forget(self) -> None:
        """Remove the record of a server that does not run."""
        self.record_path.unlink(missing_ok=True)


def server_folders(environment: Mapping[str, str]) -> list[ServerFolder]:
    """Return the folders of all servers that run or were killed, by name; other files are skipped. Raises OSError."""
    found = map(ServerFolder, sorted((state_directory(environment) / SERVERS).glob("*")))
    named = [folder for folder in found if NAME.fullmatch(folder.name) is not None and folder.path.is_dir()]
    return [folder for folder in named if folder.record_path.exists() or folder.holder() is not None]
