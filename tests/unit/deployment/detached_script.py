"""A detached server without a model: `detached_script.py FOLDER BEHAVIOUR`, for tests of its start and stop."""

import os
import signal
import sys
import time
from pathlib import Path

from baton.deployment.local.detached.folder import ServerFolder
from baton.deployment.local.detached.record import ServerRecord
from baton.deployment.local.detached.server import DetachedServer
from baton.process.service_manager import ServiceManager


def main(path: str, behaviour: str) -> None:
    """Serve until as many SIGTERM have arrived as the behaviour says, or fail."""
    manager = ServiceManager.take(os.environ)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    print("an earlier line", flush=True)
    manager.status("loading")
    if behaviour == "fails":
        print("Error: no model is there\nand none will be", file=sys.stderr)
        sys.exit(2)
    if behaviour == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    folder = ServerFolder(Path(path))
    server = DetachedServer(folder, ServerRecord(7, str(folder.log_dir), time.time()))
    server.is_starting("tiny", "http://127.0.0.1:7", 0.1)
    if behaviour != "loads":
        server.is_ready()
    if behaviour not in ("loads", "is silent"):
        manager.ready("serving")
    for _ in range({"drains": 2, "hangs": 1000}.get(behaviour, 1)):
        signal.sigwait({signal.SIGTERM})
        server.is_stopping()
    server.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
