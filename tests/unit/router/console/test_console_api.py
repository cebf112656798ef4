"""The console's paths: the page, its files, the stream of states, and who may see them."""

import asyncio
import re
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import httpx
import pytest
from starlette.types import Message

from baton.router.auth.api_key import hidden
from baton.router.config import RouterConfig
from baton.router.console import api
from baton.router.console.feed import ConsoleFeed
from baton.router.http.built_page import is_built
from baton.settings.values import OptionError
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.console.event_reader import EVENTS, events
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

MAX_VIEWERS = 2
PAGE_HEADERS = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(autouse=True)
def feeds(monkeypatch: pytest.MonkeyPatch) -> list[ConsoleFeed]:
    """Make quick streams for few viewers, and return them."""
    made: list[ConsoleFeed] = []
    make = partial(ConsoleFeed, interval_s=0.01, max_viewers=MAX_VIEWERS)

    def noted(compute: object) -> ConsoleFeed:
        made.append(make(compute))  # type: ignore[arg-type]  # what the API passes
        return made[-1]

    monkeypatch.setattr(api, "ConsoleFeed", noted)
    monkeypatch.setattr("baton.router.auth.client.CHECK_INTERVAL_S", 0.0)
    return made


async def test_the_page_may_load_its_own_files_alone_and_these_are_kept_for_good() -> None:
    async with running_router() as router:
        page = await router.http.get("/console", headers=PAGE_HEADERS)
        assert (page.status_code, page.headers["cache-control"]) == (200, "no-cache")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = dict(each.strip().split(" ", 1) for each in page.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert not re.search(r"<style|style=|\bon\w+=|<script>|https?://", page.text)
        names = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(names) == 3
        for name in names:
            asset = await router.http.get(f"/{name}")
            assert asset.status_code == 200
            assert "immutable" in asset.headers["cache-control"]
            assert asset.headers["content-security-policy"] == page.headers["content-security-policy"]
        licenses = await router.http.get("/console/assets/licenses.txt")
        assert "Preact" in licenses.text
        assert licenses.headers["cache-control"] == "no-cache"
        for path in ("/console/assets/none.js", "/console/assets/..%2Findex.html", "/console/nothing"):
            missing = await router.http.get(path)
            assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")


async def test_browsers_are_sent_to_the_console_and_other_clients_get_an_index() -> None:
    async with running_router() as router:
        answer = await router.http.get("/", headers=PAGE_HEADERS)
        assert answer.is_redirect
        assert answer.next_request is not None
        assert answer.next_request.url == f"{router.url}/console"
        index = await router.http.get("/")
        assert index.headers["vary"] == "accept"
        assert index.json()["console"] == "/console"
        for path in index.json().values():
            if path not in ("server", "/ready"):
                assert (await router.http.get(path)).status_code == 200


async def test_the_console_can_be_turned_off() -> None:
    async with running_router(console=False) as router:
        for path in ("/console", EVENTS, "/console/assets/licenses.txt"):
            missing = await router.http.get(path)
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
        index = await router.http.get("/", headers=PAGE_HEADERS)
        assert (index.status_code, "console" in index.json()) == (200, False)


async def test_a_router_whose_page_is_missing_serves_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.router.http.app.is_built", lambda _: is_built(Path("/nonexistent")))
    async with running_router(ScriptedWorker()) as router:
        assert (await router.http.get("/console")).status_code == 404
        assert "console" not in (await router.http.get("/", headers=PAGE_HEADERS)).json()
        answer = await router.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        assert answer.status_code == 200


async def test_states_follow_the_workers_and_requests(feeds: list[ConsoleFeed]) -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, keep_timelines=5) as router, events(router.http) as reader:
        assert reader.response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert reader.response.headers["cache-control"] == "no-store"
        assert await reader.next() == ("hello", {"can_control": True})
        state = await reader.state()
        assert [(each["id"], each["state"]) for each in state["workers"]] == [("decode-0", "ready")]
        body = {"prompt": "The cat sat", "max_tokens": 3}
        headers = {"x-request-id": "mine"}
        request = asyncio.create_task(router.http.post("/v1/completions", json=body, headers=headers))
        async with asyncio.timeout(20):
            while not (decoding := (await reader.state())["models"][0]["stages"][3]["requests"]):
                pass
        assert decoding[0]["id"] == "mine"  # by which its timeline is found
        assert (decoding[0]["decode"], decoding[0]["tokens"], decoding[0]["max_tokens"]) == ("decode-0", 1, 3)
        worker.go_on.set()
        assert (await request).status_code == 200
        async with asyncio.timeout(20):
            while not (recent := (state := await reader.state())["recent"]):
                pass
            while not (await reader.state())["models"][0]["total"]["completions_per_s"]:
                pass
        assert state["keeps_timelines"]
        assert [(each["id"], each["output_tokens"], each["error"]) for each in recent] == [("mine", 3, "")]
        assert recent[0]["model"] == state["models"][0]["name"]
        refused = await router.http.post("/v1/completions", json={**body, "max_tokens": 10**6}, headers=headers)
        assert refused.status_code == 400
        async with asyncio.timeout(20):
            while len(recent := (state := await reader.state())["recent"]) < 2:
                pass
        assert (recent[0]["error"], recent[0]["output_tokens"]) == ("ContextExceeded", None)  # the latest is the first
        assert state["models"][0]["errors"][0]["request_id"] == "mine"
        await worker.stop()
        async with asyncio.timeout(20):
            while (await reader.state())["workers"][0]["state"] != "lost":
                pass
    assert not feeds[0].is_running


async def test_viewers_are_bounded_and_leave_their_places(feeds: list[ConsoleFeed]) -> None:
    async with running_router() as router:
        async with events(router.http) as first, events(router.http) as second:
            await first.state()
            await second.state()
            answer = await router.http.get(EVENTS)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert "2 browsers" in answer.json()["error"]["message"]
        await until(lambda: not feeds[0].is_running)
        async with events(router.http) as again:
            await again.state()


async def test_a_viewer_that_does_not_read_holds_up_nobody() -> None:
    async with running_router(ScriptedWorker()) as router:
        host, port = router.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(f"GET {EVENTS} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        async with events(router.http) as quick:
            for _ in range(30):
                await quick.state()
            answer = await router.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert answer.status_code == 200
        writer.close()


async def test_a_head_request_ends_and_takes_no_place(feeds: list[ConsoleFeed]) -> None:
    async with running_router() as router:
        for _ in range(MAX_VIEWERS + 1):
            async with asyncio.timeout(20):
                answer = await router.http.head(EVENTS)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert not feeds[0].is_running


async def test_a_client_that_leaves_while_it_does_not_read_leaves_its_place() -> None:
    ended: list[bool] = []

    async def states() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"state"
        finally:
            ended.append(True)

    is_stuck = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            is_stuck.set()
            await asyncio.Event().wait()

    async def receive() -> Message:
        await is_stuck.wait()
        return {"type": "http.disconnect"}

    await api.EventsResponse(states())({"type": "http"}, receive, send)
    assert ended  # at once, not at some collection of garbage


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}])
async def test_without_keys_pages_of_other_sites_see_nothing(headers: dict[str, str]) -> None:
    async with running_router(cors_origins=("https://evil.example",)) as router:
        async with asyncio.timeout(20):
            answer = await router.http.get(EVENTS, headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
        async with events(router.http, {"origin": router.url, "sec-fetch-site": "same-origin"}) as reader:
            await reader.state()


async def test_a_router_that_shuts_down_ends_its_streams() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router, events(router.http) as reader:
        await reader.state()
        request = asyncio.create_task(router.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}))
        await until(lambda: bool(worker.commands))
        router.stopping.set()
        async with asyncio.timeout(20):
            await reader.end()
        worker.go_on.set()
        assert (await request).status_code == 200


async def status_of(router: RunningRouter, key: str | None, path: str = EVENTS) -> tuple[int, str]:
    """Return the status of a refused request, and the error's type."""
    method = "GET" if path == EVENTS else "POST"
    answer = await router.http.request(method, path, headers={} if key is None else bearer(key))
    return answer.status_code, answer.json()["error"]["type"]


async def test_with_keys_the_console_needs_an_admin_key(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    plain, admin = keys.add("plain"), keys.add("operator", admin=True)
    options = {"api_keys_file": str(keys.path), "api_key": ("sk-other",), "admin_api_key": ("sk-admin",)}
    async with running_router(ScriptedWorker(), **options) as router:
        assert (await router.http.get("/console")).status_code == 200  # it asks for the key
        assert (await router.http.get("/", headers=PAGE_HEADERS)).is_redirect
        assert (await router.http.get("/console/assets/licenses.txt")).status_code == 200
        for path in (EVENTS, "/console/workers/drain?address=a"):
            assert await status_of(router, None, path) == (401, "invalid_request_error")
            assert await status_of(router, "sk-wrong", path) == (401, "invalid_request_error")
            for key in (plain, "sk-other"):
                assert await status_of(router, key, path) == (403, "permission_error")
        assert (await router.http.get("/v1/models", headers=bearer("sk-admin"))).status_code == 200
        for key in (admin, "sk-admin"):
            async with events(router.http, bearer(key)) as reader:
                assert await reader.next() == ("hello", {"can_control": True})
                await reader.state()
        async with events(router.http, bearer(admin)) as reader:
            await reader.state()
            keys.change("operator", admin=False)
            async with asyncio.timeout(20):
                await reader.end()


@pytest.mark.parametrize("keys", [(), ("",), ("sk-a", "")])
def test_an_empty_admin_key_is_an_error(keys: tuple[str, ...]) -> None:
    with pytest.raises(OptionError, match="admin_api_key: must not be empty"):
        RouterConfig(model="m", admin_api_key=keys)


def test_an_admin_key_is_stored_as_a_digest_and_makes_keys_necessary() -> None:
    config = RouterConfig(model="m", admin_api_key=("sk-a",))
    assert config.admin_api_key == (hidden("sk-a"),)
    assert config.needs_key


async def test_a_key_is_read_from_the_header_alone(tmp_path: Path) -> None:
    async with running_router(admin_api_key=("sk-admin",)) as router:
        cookies = httpx.Cookies({"authorization": "Bearer sk-admin", "x-api-key": "sk-admin"})
        async with httpx.AsyncClient(base_url=router.url, cookies=cookies, trust_env=False, verify=False) as client:
            assert (await client.get(f"{EVENTS}?key=sk-admin")).status_code == 401
