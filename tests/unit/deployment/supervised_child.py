"""A small process that speaks the progress protocol; how it behaves is its first argument."""

import argparse
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from rpc.lifeline import hold_lifeline
from rpc.progress import ProgressReporter


class ReadyHandler(BaseHTTPRequestHandler):
    """Answers every GET with 200."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keeps quiet."""


def count_life(lives: Path) -> int:
    with lives.open("a") as file:
        file.write("x")
    return len(lives.read_text())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode")
    parser.add_argument("--lives", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--progress-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True)
    arguments = parser.parse_args()
    progress = ProgressReporter(arguments.progress_fd)
    hold_lifeline(arguments.lifeline_fd)
    life = count_life(arguments.lives) if arguments.lives else 1
    mode: str = arguments.mode
    ended = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "stubborn" else lambda *_: ended.set())
    if mode == "die" or (mode == "flaky" and life <= 2):
        sys.exit(f"no luck in life {life}")
    if mode == "fail":
        progress.failed("UnsupportedModel: FooForCausalLM")
        sys.exit(1)
    if mode == "leave_child" and os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pause()
    if arguments.port:
        threading.Thread(
            target=HTTPServer(("127.0.0.1", arguments.port), ReadyHandler).serve_forever, daemon=True
        ).start()
    progress.loading(0.5)
    progress.ready(address="127.0.0.1:1")
    if mode == "crash" and life == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while not ended.wait(0.05):
        pass
    print("ended well")


main()
