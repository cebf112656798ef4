"""The page of one request in Chromium: its timeline while it runs and after its end, and pages without a timeline."""

import asyncio
import importlib.util
from typing import Any

import pytest

from tests.integration.console.served_page import CHROMIUM, REQUEST_S, browser, console_page, served_cluster

has_playwright = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or not has_playwright, reason="needs Chromium and Playwright"),
]


def span(page: Any, name: str, where: str) -> Any:
    """Return the row of a span."""
    return page.get_by_role("row").filter(has=page.get_by_role("button", name=name, exact=True)).filter(has_text=where)


async def test_a_request_is_followed_from_the_live_view_to_its_end() -> None:
    async with (
        served_cluster("--keep-timelines=100") as cluster,
        browser() as chromium,
        console_page(chromium, f"{cluster.url}/console#requests") as page,
    ):
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.request("one/a%", 1500))
            await page.get_by_role("link", name="one/a%", exact=True).click()
            await page.get_by_role("heading", level=1, name="Request one/a%").wait_for()
            assert page.url.endswith("#requests/one%2Fa%25")
            await page.get_by_text("The request is running.").wait_for(state="attached")
            await span(page, "attempt", "router").filter(has_text="running").wait_for()
            await page.get_by_text("The request has finished.").wait_for(state="attached", timeout=REQUEST_S * 1000)
        for name, where in (("prefill", "prefill-0"), ("compute", "prefill-0"), ("decode", "decode-")):
            await span(page, name, where).wait_for()
        transfer = span(page, "kv_transfer", "decode-")
        assert "by shared_memory" in await transfer.inner_text()
        toggle = transfer.get_by_role("button")
        assert await toggle.get_attribute("aria-expanded") == "false"
        await toggle.press("Enter")
        details = page.locator(f"#{await toggle.get_attribute('aria-controls')}")
        assert "baton.transfer_s" in await details.inner_text()
        assert await toggle.get_attribute("aria-expanded") == "true"
        await page.reload()  # the address is enough, as when it was sent to a colleague
        await span(page, "kv_transfer", "decode-").wait_for()
        await page.get_by_role("link", name="All requests").click()
        recent = page.get_by_role("row").filter(has_text="one/a%").filter(has_text="finished")
        assert await recent.get_by_text("1,500").count() == 1


async def test_a_failed_request_is_found_from_the_recent_errors_and_by_its_id() -> None:
    async with (
        served_cluster("--keep-timelines=100") as cluster,
        browser() as chromium,
        console_page(chromium, f"{cluster.url}/console#requests") as page,
    ):
        await page.get_by_text("No request has ended yet.").wait_for()
        with pytest.raises(AssertionError, match="context"):
            await cluster.request("too-long", 10**6)
        await page.get_by_role("link", name="Overview").click()
        await page.get_by_role("link", name="too-long").click()
        await page.get_by_text("The request has failed.").wait_for(state="attached")
        await page.get_by_role("link", name="All requests").click()
        await page.get_by_label("Request id").fill("  another ")
        await page.get_by_label("Request id").press("Enter")
        await page.get_by_text("the request is unknown, or older").wait_for()
        await cluster.request("another", 4)
        await page.get_by_role("button", name="Look again").click()
        await span(page, "decode", "decode-").wait_for()


async def test_requests_with_the_same_id_are_shown_one_by_one() -> None:
    async with (
        served_cluster("--keep-timelines=100") as cluster,
        browser() as chromium,
        console_page(chromium, f"{cluster.url}/console#requests") as page,
    ):
        for num_tokens in (3, 5):
            await cluster.request("twice", num_tokens)
        tokens = page.locator(".tile", has_text="Output tokens")
        for place, num_tokens in enumerate((5, 3)):  # the latest first
            links = page.get_by_role("region", name="Recent requests").get_by_role("link", name="twice")
            await links.nth(1).wait_for()
            await links.nth(place).click()
            await tokens.filter(has_text=str(num_tokens)).wait_for()
            other = page.get_by_role("navigation", name="Requests with the same id").get_by_role("link")
            await other.click()
            await tokens.filter(has_text=str(8 - num_tokens)).wait_for()
            await page.get_by_role("link", name="All requests").click()


async def test_the_playground_links_to_the_timeline_and_a_router_without_timelines_names_the_option() -> None:
    async with (
        served_cluster() as cluster,
        browser() as chromium,
        console_page(chromium, f"{cluster.url}/console#playground") as page,
    ):
        await page.get_by_role("button", name="Send").click()
        await page.get_by_role("region", name="Output").get_by_role("link", name="Timeline").click()
        await page.get_by_text("This router keeps no timelines.").wait_for()
        assert "--keep-timelines" in await page.get_by_role("main").inner_text()


async def test_an_admin_key_sees_the_requests_of_other_keys() -> None:
    options = ("--keep-timelines=100", "--admin-api-key=sk-admin", "--api-key=sk-plain")
    async with served_cluster(*options) as cluster, browser() as chromium:
        await cluster.request("theirs", 4, "sk-plain")
        phone = {"width": 360, "height": 720}
        async with console_page(chromium, f"{cluster.url}/console#requests/theirs", viewport=phone) as page:
            await page.get_by_label("Admin key").fill("sk-admin")
            await page.get_by_label("Admin key").press("Enter")
            await span(page, "decode", "decode-").wait_for()
            name, tools = [await page.locator(each).bounding_box() for each in (".brand-name", ".tools")]
            assert name["x"] + name["width"] < tools["x"] - 4  # nothing overlaps, also with the button for the key
