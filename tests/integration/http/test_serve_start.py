"""The output of `baton serve` at its start and at its end."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process

import httpx

from benchmarks.server import free_port

DEADLINE_S = 120.0
KV_BYTES = 8 << 20  # less than one request of the full context needs, which causes a warning


async def read_until(process: Process, text: str) -> str:
    """Return the output up to and including the line with the text."""
    assert process.stdout is not None
    printed = ""
    async with asyncio.timeout(DEADLINE_S):
        while text not in printed:
            line = await process.stdout.readline()
            assert line, f"it ended before it printed {text!r}:\n{printed}"
            printed += line.decode()
    return printed


async def test_the_console_shows_endpoints_warnings_and_what_shutdown_waits_for() -> None:
    port = free_port()
    options = (
        "--colocated=1",
        "--num-threads=1",
        f"--port={port}",
        f"--kv-cache-memory-bytes={KV_BYTES}",
        "--log-level=warning",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton", "serve", *options, stdout=PIPE, stderr=STDOUT
    )
    try:
        start = await read_until(process, "Press Ctrl-C to stop.")
        assert "both-0: warning: max_model_len is " in start
        for fact in (
            f"Serving baton-bundled at http://127.0.0.1:{port}",
            "model        baton-bundled, 4.99M parameters, bfloat16",
            "device       cpu (auto: ",
            "pools        1 colocated",
            "KV cache     both: ",
            " tokens, room for 1 request of ",
            "KV transfer  shared_memory, ",
        ):
            assert fact in start, start
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False) as client:
            body = {"prompt": "def", "max_tokens": 1500, "ignore_eos": True, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body, timeout=DEADLINE_S) as response:
                assert response.status_code == httpx.codes.OK
                process.send_signal(signal.SIGINT)
                await read_until(
                    process, "Waiting for 1 request to finish (up to 30 s); press Ctrl-C again to stop now"
                )
                process.send_signal(signal.SIGINT)
                async with asyncio.timeout(10):  # far less than the 30 s
                    assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
