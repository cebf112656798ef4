"""The path of a stranger: clone, `make serve`, a chat in the console, a killed worker, another chat."""

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cloned_server import clone, made_server, needs_clone
from tests.integration.console.served_page import CHROMIUM, browser, console_page

has_playwright = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or not has_playwright, reason="needs Chromium and Playwright"),
    *needs_clone,
]


async def chat(page: Any, text: str) -> Any:
    """Send a message in the playground whose prompt is prefilled remotely, wait for its end and return the output."""
    await page.get_by_role("link", name="Playground").click()
    await page.get_by_label("Message", exact=True).fill(text)
    await page.get_by_label("Temperature").fill("0")
    await page.get_by_label("Plan").select_option("remote")
    await page.get_by_role("button", name="Send").click()
    output = page.get_by_role("region", name="Output")
    await output.get_by_text("stop", exact=True).or_(output.get_by_text("length", exact=True)).wait_for()
    assert len((await output.locator("pre.output").inner_text()).split()) > 3
    return output


async def crossed_the_pools(page: Any, output: Any) -> None:
    """Open the timeline of an output, and wait until it shows prefill, handover and decode."""
    await output.get_by_role("link", name="Timeline").click()
    await page.get_by_text("The request has finished.").wait_for(state="attached")
    for name, where in (("prefill", "prefill-0"), ("kv_transfer", "decode-0"), ("decode", "decode-0")):
        button = page.get_by_role("button", name=name, exact=True)
        await page.get_by_role("row").filter(has=button).filter(has_text=where).wait_for()


async def test_a_stranger_clones_serves_chats_kills_a_worker_and_chats_again(tmp_path: Path) -> None:
    """From a fresh clone of the last commit to a recovered cluster, all of it seen in the console.

    Left out of `make serve` are the downloads and the compilation: the clone uses the environment of this test and its
    compiled modules.
    """
    directory = tmp_path / "baton"
    environment = clone(directory)
    async with (
        made_server(directory, environment) as cluster,
        browser() as chromium,
        console_page(chromium, cluster.url) as page,  # which is redirected to the console
    ):
        await page.get_by_role("link", name="Workers").click()
        for name in ("prefill-0", "decode-0"):
            await page.get_by_role("row", name=name).filter(has_text="ready").wait_for()
        await crossed_the_pools(page, await chat(page, "What does a file do?"))

        await page.get_by_role("link", name="Workers").click()
        os.kill(cluster.pids["decode-0"], signal.SIGKILL)
        decode = page.get_by_role("row", name="decode-0")
        await decode.filter(has_text="lost").wait_for()
        await page.get_by_role("status").filter(has_text="would be served now").wait_for()
        await decode.filter(has_text="ready").wait_for()
        await page.get_by_role("status").filter(has_text="would be served now").wait_for(state="detached")
        await crossed_the_pools(page, await chat(page, "What does a list do?"))
