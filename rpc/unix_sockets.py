"""Unix sockets, at which processes of one user reach each other; without gRPC, so that a command starts at once."""

import tempfile
from pathlib import Path

MAX_PARENT_CHARS = 60  # leaves room for a directory and a worker's name: a socket's path has at most 107 characters
SHORT_PARENT = "/tmp"


def unix_address(path: str | Path) -> str:
    """Return a Unix socket's address for gRPC."""
    return f"unix:{path}"


def socket_parent() -> str:
    """Return where to make temporary directories for Unix sockets, which only their user may enter.

    The user's directory for temporary files, or /tmp if its path is too long for sockets.
    """
    parent = tempfile.gettempdir()
    return parent if len(parent) <= MAX_PARENT_CHARS else SHORT_PARENT
