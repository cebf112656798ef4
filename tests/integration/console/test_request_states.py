"""States of one request's page in Chromium, with timelines of the test in place of the router's."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from tests.integration.console.served_page import CHROMIUM, browser, console_page
from tests.unit.router.rigs.running_router import RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

has_playwright = importlib.util.find_spec("playwright") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or not has_playwright, reason="needs Chromium and Playwright"),
]


@dataclass
class Responses:
    """Responses to the page's next questions for a timeline; the last one is repeated."""

    queue: list[tuple[int, object]] = field(default_factory=list)
    num_asked: int = 0

    async def respond(self, route: Any) -> None:
        """Respond to a question."""
        self.num_asked += 1
        status, content = self.queue.pop(0) if len(self.queue) > 1 else self.queue[0]
        await route.fulfill(status=status, body=orjson.dumps(content), content_type="application/json")

    async def asked_again(self, num_times: int) -> None:
        """Wait until the page has asked for this number of times more."""
        wanted = self.num_asked + num_times
        async with asyncio.timeout(30):
            while self.num_asked < wanted:
                await asyncio.sleep(0.02)


@dataclass(frozen=True)
class RequestPage:
    """The page of the request `one`, and the router behind it."""

    page: Any
    responses: Responses
    router: RunningRouter

    async def open(self, *responses: tuple[int, object]) -> None:
        """Open the page with these responses."""
        self.responses.queue[:] = responses
        await self.page.goto(f"{self.router.url}/console#requests/one")
        await self.page.get_by_role("heading", level=1, name="Request one").wait_for()

    def tile(self, name: str) -> Any:
        """Return a figure."""
        return self.page.locator(".tile").filter(has=self.page.get_by_text(name, exact=True)).locator(".tile-value")


@asynccontextmanager
async def request_page(worker: ScriptedWorker | None = None) -> AsyncIterator[RequestPage]:
    """Serve the console with these timelines."""
    responses = Responses()
    async with (
        running_router(worker or ScriptedWorker(), keep_timelines=5) as router,
        browser() as chromium,
        console_page(chromium, f"{router.url}/console") as page,
    ):
        await page.route("**/timelines/**", responses.respond)
        yield RequestPage(page, responses, router)


def span(name: str, start_s: float, where: str = "router", **changes: object) -> dict[str, object]:
    """Return a span."""
    common = {"depth": 1, "duration_s": 1.0, "running": False, "error": None, "reason": ""}
    return {"name": name, "where": where, "start_s": start_s, "attributes": {}, "events": [], **common, **changes}


def timeline(*spans: dict[str, object], **changes: object) -> tuple[int, object]:
    """Return a response with a timeline of a running request."""
    fields = {"request_id": "one", "trace_id": "0" * 32, "sampled": False, "model": "m", "begun_at": 1.0}
    common = {"duration_s": 119.7, "running": True, "attributes": {}, "dropped_spans": 0}
    return 200, {**fields, **common, "spans": [span("chat", 0.0, depth=0), *spans], **changes}


def error(status: int, message: str) -> tuple[int, object]:
    """Return an error of the router."""
    return status, {"error": {"message": message}}


FIRST, SECOND = span("attempt", 1.0, running=True), span("attempt", 2.0, attributes={"baton.completion": 1})


async def test_an_open_span_stays_open_when_others_appear_and_when_the_router_does_not_respond() -> None:
    worker_span = span("decode", 1.1, "decode-0", depth=2)
    async with request_page() as shown:
        await shown.open(timeline(FIRST, SECOND))
        toggle = shown.page.get_by_role("button", name="attempt").last
        await toggle.click()
        opened = shown.page.locator("dl.headers").filter(has_text="baton.completion")
        await opened.wait_for()
        assert await shown.tile("Running for").inner_text() == "2 min 0 s"
        shown.responses.queue[:] = [timeline(FIRST, worker_span, SECOND)]
        await shown.page.get_by_role("button", name="decode").wait_for()
        assert await opened.count() == 1
        assert await toggle.get_attribute("aria-expanded") == "true"
        shown.responses.queue[:] = [error(503, "the router is shutting down")]
        await shown.responses.asked_again(2)
        assert await opened.count() == 1
        shown.responses.queue[:] = [error(404, "the request is unknown")]
        await shown.page.get_by_role("heading", name="Not found").wait_for()


async def test_errors_that_may_pass_are_tried_again_also_if_the_page_is_paused() -> None:
    async with request_page() as shown:
        await shown.page.get_by_text("● live").wait_for()
        await shown.page.get_by_role("button", name="Pause").click()
        await shown.open(error(401, "the API key is unknown"), timeline(FIRST))
        await shown.page.get_by_role("alert").filter(has_text="the API key is unknown. The console tries").wait_for()
        assert not await shown.page.get_by_role("heading", name="Not found").count()
        await shown.page.get_by_role("button", name="attempt").wait_for()


async def test_tokens_of_completions_that_have_ended_count_while_others_run() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with request_page(worker) as shown:
        body, headers = {"prompt": "The cat sat", "max_tokens": 3}, {"x-request-id": "one"}
        request = asyncio.create_task(shown.router.http.post("/v1/completions", json=body, headers=headers))
        await shown.open(timeline(FIRST, attributes={"gen_ai.usage.output_tokens": 100}))
        await shown.tile("Output tokens").filter(has_text="101").wait_for()
        worker.go_on.set()
        await request
        reasons = [*["length"] * 100, "stop"]
        shown.responses.queue[:] = [timeline(running=False, attributes={"gen_ai.response.finish_reasons": reasons})]
        await shown.page.get_by_text("length, stop", exact=True).wait_for()


async def test_a_request_whose_client_left_is_cancelled() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with request_page(worker) as shown:
        body = {"prompt": "The cat sat", "max_tokens": 3, "stream": True}
        headers = {"x-request-id": "one"}
        async with shown.router.http.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            async for _ in response.aiter_bytes():
                break
        await shown.page.unroute_all()
        await shown.page.goto(f"{shown.router.url}/console#requests")
        row = shown.page.get_by_role("row").filter(has_text="cancelled")
        await row.get_by_role("link", name="one").click()
        await shown.page.get_by_text("The request was cancelled.").wait_for(state="attached")
        worker.go_on.set()


@pytest.mark.parametrize("request_id", [".", ".."])
async def test_ids_that_no_address_can_contain_are_not_found(request_id: str) -> None:
    async with request_page() as shown:
        await shown.page.unroute_all()
        await shown.page.goto(f"{shown.router.url}/console#requests/{request_id}")
        await shown.page.get_by_role("heading", name="Not found").wait_for()
        await shown.page.get_by_text("Addresses cannot contain this id").wait_for()
