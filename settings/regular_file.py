"""Files of operators, read without the risk that a FIFO or a device blocks the process."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises OSError, whose `strerror` names the problem; also for a directory, FIFO, device or socket, without blocking.
    """
    # Without O_NONBLOCK, the open of a FIFO waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path) -> bytes:
    """Return the content of a regular file. Raises OSError as `open_regular`."""
    with open_regular(path) as file:
        return file.read()
