"""A child process ends when its supervisor is gone, however the supervisor ended.

The supervisor keeps the write end of a pipe and writes nothing; its end closes the pipe, whether it ended well or was
killed. The child waits for that on the read end. Unlike a parent-death signal this needs no code between fork and exec,
does not depend on which thread forked, and works wherever there are pipes.
"""

import os
import signal
import threading
import time

GRACE_S = 3.0  # between the request to end and the end by force


def hold_lifeline(fd: int) -> None:
    """Watches the pipe's read end `fd` from a thread; at its end, sends this process SIGTERM and then ends it."""
    threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()


def _watch(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(1)
