"""A small process that speaks the progress protocol; how it behaves is its first argument."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from baton.process.child import OOM_KILLED
from baton.process.entry import hold_lifeline
from baton.process.logs import dump_stacks_on_signal
from baton.process.progress import ProgressReporter

HOARD_BYTES = 512 << 20
NUM_LIVES = 6  # after which the mode that fails after its first readiness is ready again
HEARTBEAT = b'{"stage": "alive"}\n'
WORKER = {
    "role": "decode",
    "address": "127.0.0.1:1",
    "block_size": 16,
    "max_model_len": 512,
    "load": {"num_blocks": 64},
    "transports": ["tcp"],
}


class WorkersHandler(BaseHTTPRequestHandler):
    """Respond to every GET like a router's /workers, with one worker more each time."""

    workers: Sequence[str] = ()
    num_asked = 0

    def do_GET(self) -> None:
        known = [{"worker_id": each, "state": "ready", **WORKER} for each in self.workers[: self.num_asked]]
        WorkersHandler.num_asked += 1
        self.send_response(200)
        self.end_headers()
        unknown = {"worker_id": None, "state": "connecting"}
        router = {"ready": bool(known), "num_asked": self.num_asked, "inflight": 3, "process": None}
        self.wfile.write(json.dumps({"router": router, "workers": [*known, unknown]}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def count_life(lives: Path) -> int:
    with lives.open("a") as file:
        file.write("x")
    return len(lives.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--lives", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--workers", nargs="*", default=[])
    parser.add_argument("--progress-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True)
    arguments = parser.parse_args()
    progress = ProgressReporter(arguments.progress_fd)
    dump_stacks_on_signal()
    hold_lifeline(arguments.lifeline_fd)
    life = count_life(arguments.lives) if arguments.lives else 1
    mode: str = arguments.mode
    ended = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else lambda *_: ended.set())
    if mode == "die" or (mode == "flaky" and life <= 2) or (mode == "recover" and 1 < life <= NUM_LIVES):
        sys.exit(f"no luck in life {life}")
    if mode == "fail" or (mode == "fail_later" and 1 < life <= NUM_LIVES):
        progress.failed("UnsupportedModel: FooForCausalLM")
        sys.exit(1)
    if mode in ("leave_child", "leave_session"):
        pause, in_session = (sys.executable, "-c", "import signal; signal.pause()"), mode == "leave_session"
        subprocess.Popen(pause, pass_fds=(arguments.progress_fd,), start_new_session=in_session)
    if arguments.port:
        WorkersHandler.workers = arguments.workers
        server = HTTPServer(("127.0.0.1", arguments.port), WorkersHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    progress.loading(0.5)
    progress.ready(address="127.0.0.1:1")
    if mode == "hungry":
        hoard = bytearray(HOARD_BYTES)
        print(len(hoard))
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGABRT)
    if mode == "lose_rank":
        progress.failed(f"EngineEnded: rank 1 of this worker {OOM_KILLED}")
        sys.exit(1)
    while not ended.wait(0.05):
        if mode == "beat" or (mode == "stall" and life > 1):
            os.write(arguments.progress_fd, HEARTBEAT)
    print("ended well")


if __name__ == "__main__":
    main()
