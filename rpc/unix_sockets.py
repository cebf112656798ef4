"""Unix sockets, at which processes of one user reach each other; without gRPC, so that a command starts at once."""

import re
import tempfile
from pathlib import Path

MAX_PARENT_CHARS = 60  # leaves room for a directory and a worker's name: a socket's path has at most 107 characters
SHORT_PARENT = "/tmp"
# Other characters need escapes in an address, separate the addresses of a list, or take several bytes.
PARENT = re.compile(r"[A-Za-z0-9._/+=@~-]+")


def unix_address(path: str | Path) -> str:
    """Return a Unix socket's address for gRPC."""
    return f"unix:{path}"


def socket_parent() -> str:
    """Return where to make temporary directories for Unix sockets, which only their user may enter.

    The user's directory for temporary files, or /tmp if its path is too long for sockets or has characters that an
    address cannot have.
    """
    parent = tempfile.gettempdir()
    return parent if len(parent) <= MAX_PARENT_CHARS and PARENT.fullmatch(parent) is not None else SHORT_PARENT
