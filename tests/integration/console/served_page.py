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

from benchmarks.server import free_port
from tests.integration.http.test_serve_start import read_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MIB = 1 << 20


@dataclass(frozen=True)
class ServedCluster:
    """A prefill worker and two decode workers."""

    url: str
    pids: dict[str, int]  # by worker id


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
        pids = {name: int(pid) for name, pid in re.findall(r"(\S+): starting \(process (\d+)\)", text)}
        yield ServedCluster(f"http://127.0.0.1:{port}", pids)
    finally:
        process.terminate()
        await process.wait()


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
