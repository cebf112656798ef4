"""A served cluster with its console in a real browser."""

import asyncio
import re
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.server import free_port
from tests.integration.http.test_serve_start import read_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REQUEST_S = 400.0  # a long request on a busy machine
PROMPT = "What does a list do, and how does it differ from a tuple? " * 12


@dataclass(frozen=True)
class ServedCluster:
    """A prefill worker and two decode workers."""

    url: str
    pids: dict[str, int]  # by worker id

    async def request(self, request_id: str, max_tokens: int, key: str = "") -> None:
        """Send a chat request whose prompt is prefilled remotely, and read its response."""
        body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": max_tokens, "ignore_eos": True}
        headers = {"x-request-id": request_id, "x-baton-plan": "remote"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, verify=False, timeout=REQUEST_S) as client:
            response = await client.post("/v1/chat/completions", json=body, headers=headers)
            assert response.status_code == httpx.codes.OK, response.text


@asynccontextmanager
async def served_cluster(*options: str) -> AsyncIterator[ServedCluster]:
    """Run `baton serve`."""
    port = free_port()
    command = (sys.executable, "-m", "baton", "serve", "--prefill=1", "--decode=2", f"--port={port}", *options)
    process = await asyncio.create_subprocess_exec(
        *command, "--kv-cache-memory-bytes=64MiB", "--log-level=warning", stdout=PIPE, stderr=STDOUT
    )
    try:
        text = await read_until(process, "Press Ctrl-C to stop.")
        assert f"http://127.0.0.1:{port}/console" in text
        yield ServedCluster(f"http://127.0.0.1:{port}", worker_pids(text))
    finally:
        process.terminate()
        await process.wait()


def worker_pids(output: str) -> dict[str, int]:
    """Return the processes of the workers, by their ids, from what `baton serve` printed."""
    return {name: int(pid) for name, pid in re.findall(r"(\S+): starting \(process (\d+)\)", output)}


@asynccontextmanager
async def browser() -> AsyncIterator[Any]:
    """Start the machine's Chromium without a window."""
    from playwright.async_api import async_playwright  # optional

    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield chromium
        finally:
            await chromium.close()


@asynccontextmanager
async def console_page(chromium: Any, url: str, **options: Any) -> AsyncIterator[Any]:
    """Open the console; no script may fail, and nothing may violate the content security policy."""
    context = await chromium.new_context(**options)
    page = await context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if "Content Security" in message.text else None)
    page.set_default_timeout(60_000)
    try:
        await page.goto(url)
        yield page
        assert problems == []
    finally:
        await context.close()
