"""Unix sockets between processes of one user; imports no gRPC, so that commands start fast."""

import re
import tempfile
from pathlib import Path

MAX_PARENT_CHARS = 60  # a socket's path has at most 107 characters; leaves room for a directory and a worker's name
SHORT_PARENT = "/tmp"
# Other characters need escapes in an address, separate addresses of a list, or take several bytes.
PARENT = re.compile(r"[A-Za-z0-9._/+=@~-]+")


def unix_address(path: str | Path) -> str:
    """Return a Unix socket's address for gRPC."""
    return f"unix:{path}"


def socket_parent() -> str:
    """Return the parent for temporary directories of Unix sockets.

    It is the user's directory for temporary files, or /tmp if that path is too long for sockets or has characters
    that an address cannot contain.
    """
    parent = tempfile.gettempdir()
    return parent if len(parent) <= MAX_PARENT_CHARS and PARENT.fullmatch(parent) is not None else SHORT_PARENT
