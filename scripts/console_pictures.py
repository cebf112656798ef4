"""Takes the pictures of the web console for the documentation, into docs/images.

    .venv/bin/pip install -r tests/integration/console/requirements.txt
    .venv/bin/python scripts/console_pictures.py [--seconds 90]

Serves the bundled model with a prefill worker and two decode workers, sends it chats for some time, so that the charts
have something to show, and drives the machine's Chromium.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent))  # the server and the browser are those of the tests
from tests.integration.console.served_page import ServedCluster, browser, served_cluster

IMAGES = Path(__file__).parent.parent / "docs" / "images"
DESK, PHONE = {"width": 1180, "height": 800}, {"width": 390, "height": 780}
QUESTIONS = (
    "What does a list do?",
    "What does json.dumps do, and when does it raise an error?",
    "What is the difference between a module and a package?",
    "Explain what a file object is. " * 8,
    "Which exceptions may open raise? Answer in one sentence. " * 12,
)
SHOWN = "7c0e1f1d3b5f4f0e9b57d0a6a2f8d9c1"  # the request whose timeline is shown


async def chat(client: httpx.AsyncClient, random_source: random.Random) -> None:
    """Send one chat request, sometimes one that is refused."""
    limit = 10**6 if random_source.random() < 0.004 else random_source.choice((24, 60, 120))
    text = f"{random_source.randrange(40)}. {random_source.choice(QUESTIONS)}"  # the cache has some of them
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": limit}
    await client.post("/v1/chat/completions", json=body)
    await asyncio.sleep(random_source.expovariate(1.5))


@asynccontextmanager
async def load(url: str, num_clients: int = 5) -> AsyncIterator[None]:
    """Send chats for the duration of a `with` block."""

    async def send(number: int) -> None:
        random_source = random.Random(number)
        while True:
            await chat(client, random_source)

    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        tasks = [asyncio.create_task(send(number)) for number in range(num_clients)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def shown(chromium: Any, url: str, viewport: dict[str, int], scheme: str) -> AsyncIterator[Any]:
    """Open a page of the console with sharp pixels."""
    context = await chromium.new_context(viewport=viewport, color_scheme=scheme, device_scale_factor=1.5)
    try:
        page = await context.new_page()
        await page.goto(url)
        await page.get_by_text("● live").wait_for()
        yield page
    finally:
        await context.close()


async def take(page: Any, name: str, is_whole: bool = False) -> None:
    """Write a picture. `is_whole`: of the whole page, however long it is."""
    path = IMAGES / f"console_{name}.png"
    await page.screenshot(path=path, full_page=is_whole)
    print(f"{path}: {path.stat().st_size >> 10} KiB")


async def take_overviews(chromium: Any, cluster: ServedCluster) -> None:
    """Picture the overview with its load, on a desk and on a phone."""
    for scheme, viewport, name in (
        ("light", DESK, "overview"),
        ("dark", DESK, "overview_dark"),
        ("dark", PHONE, "phone"),
    ):
        async with shown(chromium, f"{cluster.url}/console", viewport, scheme) as page:
            await page.get_by_text("of prompt tokens").first.wait_for()
            await page.get_by_role("list", name="Live requests by stage").locator("circle").first.wait_for()
            await take(page, name)


async def take_request(chromium: Any, cluster: ServedCluster) -> None:
    """Picture the timeline of a request whose prompt was handed over."""
    await cluster.request(SHOWN, 48)
    address = f"{cluster.url}/console#requests/{SHOWN}"
    for scheme, viewport, name in (
        ("light", DESK, "request"),
        ("dark", DESK, "request_dark"),
        ("light", PHONE, "request_phone"),
    ):
        async with shown(chromium, address, viewport, scheme) as page:
            await page.get_by_role("button", name="kv_transfer").wait_for()
            if viewport is DESK:
                await page.get_by_role("button", name="kv_transfer").click()
            await take(page, name, is_whole=True)


async def take_playground(chromium: Any, cluster: ServedCluster) -> None:
    """Picture two settings side by side, on a phone one."""
    for viewport, scheme, name in ((DESK, "light", "playground"), (PHONE, "dark", "playground_phone")):
        async with shown(chromium, f"{cluster.url}/console#playground", viewport, scheme) as page:
            if viewport is DESK:
                await page.get_by_label("Compare two settings").check()
            await page.get_by_role("button", name="Send").click()
            for output in await page.get_by_role("region", name="Output").all():
                await output.get_by_text("stop", exact=True).or_(output.get_by_text("length", exact=True)).wait_for()
            await take(page, name, is_whole=True)


async def main(seconds: float) -> None:
    """Take all pictures after some seconds of load."""
    async with served_cluster("--keep-timelines=1000", "--local-prefill-below=32") as cluster, browser() as chromium:
        async with load(cluster.url):
            await asyncio.sleep(seconds)
            await take_overviews(chromium, cluster)
        await take_request(chromium, cluster)
        await take_playground(chromium, cluster)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=90.0, help="duration of the load before the first picture")
    asyncio.run(main(parser.parse_args().seconds))
