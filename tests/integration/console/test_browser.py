"""The console in Chromium: a real cluster, a chat, a worker that dies, accessibility."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.console.served_page import CHROMIUM, browser, console_page, served_cluster

WEB = Path(__file__).parents[3] / "console"
AXE = WEB / "node_modules" / "axe-core" / "axe.min.js"
PAGES = ("overview", "workers", "requests", "planner", "playground")
has_playwright = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or not has_playwright, reason="needs Chromium and Playwright"),
]


async def worker_line(page: Any, name: str, state: str) -> None:
    """Wait until the table of workers shows a worker in a state."""
    await page.get_by_role("row", name=name).filter(has_text=state).wait_for()


async def test_workers_a_chat_and_the_loss_of_a_worker() -> None:
    async with (
        served_cluster() as cluster,
        browser() as chromium,
        console_page(chromium, cluster.url) as page,  # which is redirected
    ):
        assert page.url == f"{cluster.url}/console"
        await page.get_by_text("live", exact=False).first.wait_for()
        await page.get_by_role("link", name="Workers").click()
        for name in ("prefill-0", "decode-0", "decode-1"):
            await worker_line(page, name, "ready")

        await page.get_by_role("link", name="Playground").click()
        await page.get_by_label("Compare two settings").check()
        await page.get_by_label("Message", exact=True).fill("What does a list do?")
        await page.get_by_role("button", name="Send").click()
        for name in ("Output A", "Output B"):
            output = page.get_by_role("region", name=name)
            await output.get_by_text("x-baton-decode").wait_for()
            await output.get_by_text("stop", exact=True).or_(output.get_by_text("length", exact=True)).wait_for()
            text = await output.locator("pre.output").inner_text()
            assert len(text.split()) > 3
            assert "decode-" in await output.locator("dl.headers").inner_text()

        await page.get_by_role("link", name="Workers").click()
        os.kill(cluster.pids["decode-1"], signal.SIGKILL)
        await worker_line(page, "decode-1", "lost")
        await worker_line(page, "decode-1", "ready")

        await page.get_by_role("button", name="Drain decode-0").click()
        await page.get_by_role("dialog").get_by_role("button", name="Drain decode-0").click()
        await worker_line(page, "decode-0", "drained")
        await page.get_by_role("button", name="Drain decode-1").click()
        await page.get_by_role("dialog").get_by_role("button", name="Drain decode-1").click()
        await page.get_by_role("alert").filter(has_text="is the last decode worker").wait_for()
        await page.get_by_role("dialog").get_by_role("button", name="Do it anyway").wait_for()
        await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        await page.get_by_role("button", name="Undrain decode-0").click()
        await page.get_by_role("dialog").get_by_role("button", name="Undrain decode-0").click()
        await worker_line(page, "decode-0", "ready")

        await page.get_by_label("Change the role of decode-1").select_option("prefill")
        await page.get_by_role("dialog").get_by_role("button", name="Make decode-1 prefill").click()
        changed = page.get_by_role("row", name="decode-1").filter(has=page.get_by_text("prefill", exact=True))
        await changed.filter(has_text="ready").wait_for()


async def test_structured_output_a_wrong_schema_and_the_form_for_the_key() -> None:
    async with (
        served_cluster("--admin-api-key=sk-admin", "--api-key=sk-plain") as cluster,
        browser() as chromium,
        console_page(chromium, f"{cluster.url}/console#playground") as page,
    ):
        key = page.get_by_label("Admin key")
        await key.fill("sk-plain")
        await page.get_by_role("button", name="Open").click()
        await page.get_by_role("alert").filter(has_text="admin key").wait_for()
        await key.fill("sk-admin")
        await key.press("Enter")
        await page.get_by_text("JSON Schema of the output").click()
        schema = page.get_by_label("JSON Schema, Settings")
        await schema.fill("{")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_role("alert").filter(has_text="is not JSON").wait_for()
        content = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
        await schema.fill(json.dumps(content | {"additionalProperties": False}))
        await page.get_by_role("button", name="Send").click()
        output = page.get_by_role("region", name="Output")
        await output.get_by_text("stop", exact=True).wait_for()
        assert json.loads(await output.locator("pre.output").inner_text())["n"] in (1, 2)
        stored = await page.evaluate("[Object.keys(localStorage), Object.keys(sessionStorage), document.cookie]")
        assert stored == [["baton-console-theme"], ["baton-console-key"], ""]


def axe_script() -> str:
    """Return axe-core's script, installed if need be."""
    if not AXE.exists():
        if shutil.which("npm") is None:
            pytest.skip("needs npm for axe-core")
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=WEB, check=True, capture_output=True)
    return AXE.read_text(encoding="utf-8")


async def flaws(page: Any) -> list[tuple[str, str, str]]:
    """Return the address and what axe-core finds there, or that the page is wider than the window."""
    address = page.url.partition("/console")[2]
    found = [
        (address, each["id"], node["html"])
        for each in (await page.evaluate("axe.run(document)"))["violations"]
        for node in each["nodes"]
    ]
    width = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return [*found, (address, "too wide", str(width))] if width > 0 else found


async def test_axe_finds_nothing_serious_and_no_page_is_wider_than_a_phone() -> None:
    script, found = axe_script(), []
    async with served_cluster("--keep-timelines=100") as cluster, browser() as chromium:
        request_id = "a-very-long-id-of-a-request-" * 4
        await cluster.request(request_id, 8)
        with pytest.raises(AssertionError, match="context"):
            await cluster.request("too-long", 10**6)
        for scheme, width in (("light", 1180), ("light", 360), ("dark", 360)):
            options = {"color_scheme": scheme, "viewport": {"width": width, "height": 720}}
            async with console_page(chromium, f"{cluster.url}/console", **options) as page:
                await page.get_by_text("prefill", exact=True).first.wait_for()
                await page.evaluate(script)
                for name in PAGES:
                    await page.get_by_role("link", name=name.capitalize()).click()
                    await page.get_by_role("heading", level=1, name=name.capitalize()).wait_for()
                    found += [(scheme, width, *each) for each in await flaws(page)]
                for name in (request_id, "too-long", "unknown"):
                    await page.goto(f"{cluster.url}/console#requests/{name}")
                    await page.get_by_role("heading", level=1, name=f"Request {name}").wait_for()
                    await page.get_by_role("heading", level=2).last.wait_for()
                    for toggle in await page.locator("button.span-name").all():
                        await toggle.click()
                    found += [(scheme, width, *each) for each in await flaws(page)]
    assert found == []


async def test_the_apis_description_is_shown_with_the_key_of_the_tab() -> None:
    async with (
        served_cluster("--admin-api-key=sk-admin", "--protect-operations") as cluster,
        browser() as chromium,
        console_page(chromium, f"{cluster.url}/console") as page,
    ):
        other_hosts: list[str] = []
        page.on("request", lambda request: other_hosts.append(request.url) if cluster.url not in request.url else None)
        await page.get_by_label("Admin key").fill("sk-admin")
        await page.get_by_role("button", name="Open").click()
        await page.get_by_role("link", name="API", exact=True).click()
        await page.get_by_text("/v1/chat/completions", exact=True).first.wait_for()
        assert [url for url in other_hosts if not url.startswith("data:")] == []


async def test_the_page_is_used_by_keyboard() -> None:
    async with served_cluster() as cluster, browser() as chromium, console_page(chromium, cluster.url) as page:
        await page.get_by_text("live", exact=False).first.wait_for()
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        await page.keyboard.press("Enter")
        assert await page.evaluate("document.activeElement.id") == "main"
        await page.get_by_role("button", name="Pause").focus()
        await page.keyboard.press("Space")
        await page.get_by_text("paused").wait_for()
        theme = page.get_by_role("button", name="Colours")
        for expected in ("light", "dark", None):
            await theme.press("Enter")
            assert await page.evaluate("document.documentElement.dataset.theme ?? null") == expected
