"""The page /docs in Chromium: its keys, and what it loads."""

import importlib.util
from typing import Any

import pytest

from tests.integration.console.served_page import CHROMIUM, browser, console_page
from tests.unit.router.rigs.running_router import running_router

has_playwright = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or not has_playwright, reason="needs Chromium and Playwright"),
]
KEYS = {"api_key": ("sk-user",), "admin_api_key": ("sk-admin",)}
STORE_KEY = "sessionStorage.setItem('baton-console-key', 'sk-admin')"


async def sent_keys(page: Any) -> list[str]:
    """Try out GET /v1/models on the page, and return the keys in the request's headers."""
    await page.locator("#operations-default-models_v1_models_get, [id*='v1_models_get']").first.click()
    await page.get_by_role("button", name="Try it out").click()
    async with page.expect_request("**/v1/models") as request:
        await page.get_by_role("button", name="Execute").click()
    headers = await (await request.value).all_headers()
    return [headers[name] for name in ("authorization", "x-api-key") if name in headers]


@pytest.mark.parametrize(
    ("field", "expected"),
    [(None, ["Bearer sk-admin"]), ("bearer", ["Bearer sk-user"]), ("x-api-key", ["sk-user"])],
)
async def test_a_key_that_is_entered_replaces_the_consoles(field: str | None, expected: list[str]) -> None:
    async with (
        running_router(**KEYS) as router,
        browser() as chromium,
        console_page(chromium, f"{router.url}/docs") as page,
    ):
        await page.evaluate(STORE_KEY)
        if field is not None:
            await page.get_by_role("button", name="Authorize").first.click()
            await page.locator(".auth-container", has_text=field).locator("input").fill("sk-user")
            await (
                page.locator(".auth-container", has_text=field).get_by_role("button", name="Apply credentials").click()
            )
            await page.get_by_role("button", name="Close").last.click()
        assert await sent_keys(page) == expected


async def test_an_address_cannot_make_the_page_load_another_description() -> None:
    loaded: list[str] = []
    async with (
        running_router() as router,
        browser() as chromium,
        console_page(chromium, f"{router.url}/docs") as page,
    ):
        page.on("request", lambda request: loaded.append(request.url))
        other = "http://127.0.0.1:9/openapi.json"
        await page.goto(f"{router.url}/docs?url={other}&configUrl={other}&urls.primaryName=x")
        await page.get_by_text("/v1/chat/completions", exact=True).first.wait_for()
        await page.wait_for_load_state("networkidle")
        assert await page.get_by_role("main").count() == 1
    assert loaded
    assert all(url.startswith((router.url, "data:")) for url in loaded)
