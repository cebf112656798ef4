"""Runs what an image runs, from its own environment: every command's help, compiled modules, a completion, an end."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

BIN = Path(sys.executable).parent
COMMANDS = (["baton", "--help"], ["baton", "router", "--help"], ["baton", "worker", "--help"], ["ray", "--version"])
COMPILED = (
    "baton.router.native.prefix_index",
    "baton.engine.native.block_hash",
    "baton.engine.native.thread_team",
    "baton.engine.native.paged_attention",
    "baton.engine.native.layer_ops",
    "baton.engine.native.products",
)
READY_S = 120
PROMPT = "The module textwrap wraps and fills text. " * 20  # long enough to be prefilled elsewhere


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Returns once every worker is attached. Raises RuntimeError if the server ends, or takes too long."""
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and server.poll() is None:
        try:
            workers = json.load(urlopen(f"{url}/workers"))["workers"]
        except URLError:
            workers = []
        if len(workers) == 2 and all(worker["state"] == "ready" for worker in workers):
            return
        time.sleep(0.2)
    raise RuntimeError(f"not ready within {READY_S} s (status {server.poll()})")


def complete(url: str) -> str:
    """Who prefilled a completion. Raises for an answer that is none."""
    body = json.dumps({"model": "baton-bundled", "prompt": PROMPT, "max_tokens": 8}).encode()
    with urlopen(Request(f"{url}/v1/completions", body, {"content-type": "application/json"})) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 8
        return str(answer.headers["x-baton-prefill"])


def main() -> None:
    """Raises at the first thing that is not as it should be."""
    for command in COMMANDS:
        subprocess.run([str(BIN / command[0]), *command[1:]], check=True, stdout=subprocess.DEVNULL)
    for name in COMPILED:
        print(name, import_module(name).__file__)
    assert not os.access(sys.prefix, os.W_OK), f"{sys.prefix} can be written to"
    port = free_port()
    server = subprocess.Popen([str(BIN / "baton"), "serve", "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        wait_ready(f"http://127.0.0.1:{port}", server)
        print(f"uid {os.getuid()}: served, prefilled by {complete(f'http://127.0.0.1:{port}')}")
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(60)
    assert status == 0, f"baton serve ended with status {status}"


if __name__ == "__main__":
    main()
