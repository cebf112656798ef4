"""Tables of experts and adapters in Chromium, of a state that the test composes."""

import importlib.util
import json
from typing import Any

import pytest

from tests.integration.console.served_page import CHROMIUM, browser, console_page
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

has_playwright = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or not has_playwright, reason="needs Chromium and Playwright"),
]
MARKUP = "<img src=x onerror=alert(1)>"


def rank(group: str, number: int, rows: int, layer: int, imbalance: float) -> dict[str, Any]:
    """Return what differs from other workers' rows for one of two ranks."""
    share = {"group": group, "rank": number, "ranks": 2, "layer": layer, "imbalance": imbalance, "rows": rows}
    return {
        "id": f"{group}-{number}",
        "address": f"{group}:{number}",
        "experts": {**share, "experts": [number], "num_experts": 1},
    }


async def real_state(url: str, client: Any) -> dict[str, Any]:
    """Return the first state that the router sends to viewers."""
    async with client.stream("GET", f"{url}/console/events") as response:
        async for line in response.aiter_lines():
            if line.startswith("data: ") and '"workers"' in line:
                state: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return state
    raise AssertionError("there was no state")


async def test_groups_of_experts_are_shown_one_by_one_and_names_are_no_markup() -> None:
    async with running_router(ScriptedWorker(), console=True) as router, browser() as chromium:
        state = await real_state(router.url, router.http)
        [worker] = state["workers"]
        ranks = [
            *(rank("decode-group", number, rows, 3, 1.5) for number, rows in enumerate((30, 10))),
            *(rank("prefill-group", number, rows, 7, 2.25) for number, rows in enumerate((1, 3))),
            rank("torn-group", 1, 12_345, 0, 0.0),  # its other rank is lost
        ]
        state["workers"] = [worker, *({**worker, **each} for each in ranks)]
        [model] = state["models"]
        model["adapters"], model["num_adapters"] = [{"name": MARKUP, "loaded": 2, "resident": 1}], 1
        body = f"event: state\ndata: {json.dumps(state)}\n\n"
        context_of = console_page(chromium, "about:blank", viewport={"width": 360, "height": 800})
        async with context_of as page:
            await page.route(
                "**/console/events", lambda route: route.fulfill(body=body, content_type="text/event-stream")
            )
            await page.goto(f"{router.url}/console#workers")
            sections = {
                name: page.get_by_role("region", name=f"Experts of {name}", exact=True)
                for name in ("decode-group", "prefill-group", "torn-group")
            }
            await sections["decode-group"].wait_for()
            texts = {name: await section.inner_text() for name, section in sections.items()}
            adapters = page.get_by_role("region", name="LoRA adapters", exact=True)
            assert MARKUP in await adapters.inner_text()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert all(share in texts["decode-group"] for share in ("75 %", "25 %", "Layer 3", "1.50 times"))
    assert all(share in texts["prefill-group"] for share in ("25 %", "75 %", "Layer 7", "2.25 times"))
    assert "12.3 k" in texts["torn-group"]
    assert "%" not in texts["torn-group"]
