"""Web pages of other origins that call the server from a browser."""

import pytest

from baton.router.config import RouterConfig
from baton.settings.values import OptionError
from tests.unit.router.rigs.running_router import MODEL, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
PAGE, OTHER = "https://chat.example.org", "https://other.example.org"
ASKED = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}
REQUESTS = [
    ("POST", CHAT, BODY, 200),
    ("POST", CHAT, {**BODY, "stream": True}, 200),
    ("POST", CHAT, {**BODY, "n": 0}, 400),
    ("POST", f"{CHAT}?over=asgi", BODY, 200),
    ("POST", f"{CHAT}?over=asgi", {**BODY, "stream": True}, 200),
    ("GET", "/v1/models", None, 200),
    ("GET", "/v1/nothing", None, 404),
]


async def test_without_the_option_no_origin_is_allowed() -> None:
    async with running_router(ScriptedWorker()) as router:
        assert (await router.http.options(CHAT, headers=ASKED)).status_code == 405
        for method, path, body, status in REQUESTS:
            answer = await router.http.request(method, path, json=body, headers={"origin": PAGE})
            assert answer.status_code == status
            assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]


async def test_every_response_names_the_page_that_may_read_it() -> None:
    async with running_router(ScriptedWorker(), cors_origins=(PAGE, "http://localhost:3000")) as router:
        for method, path, body, status in REQUESTS:
            answer = await router.http.request(method, path, json=body, headers={"origin": PAGE})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
            assert answer.headers["access-control-expose-headers"] == "*"
            assert answer.headers["vary"] == "Origin"
            for headers in ({"origin": OTHER}, {}):
                answer = await router.http.request(method, path, json=body, headers=headers)
                assert answer.status_code == status
                assert "access-control-allow-origin" not in answer.headers
                assert answer.headers["vary"] == "Origin"


async def test_an_asterisk_allows_every_origin() -> None:
    async with running_router(ScriptedWorker(), cors_origins=("*",)) as router:
        for method, path, body, status in REQUESTS:
            answer = await router.http.request(method, path, json=body, headers={"origin": OTHER})
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, "*")


async def test_a_cors_preflight_needs_no_key() -> None:
    async with running_router(ScriptedWorker(), cors_origins=(PAGE,), api_key=("sk-a",)) as router:
        allowed = await router.http.options(CHAT, headers=ASKED)
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert allowed.headers["access-control-allow-headers"] == ASKED["access-control-request-headers"]
        assert (await router.http.options(CHAT, headers={**ASKED, "origin": OTHER})).status_code == 400
        refused = await router.http.post(CHAT, json=BODY, headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, PAGE)


@pytest.mark.parametrize("origin", ["http://[::1]:3000", "https://a.org:8443", "chrome-extension://abc", "null", "*"])
def test_origins_have_the_form_that_browsers_send(origin: str) -> None:
    assert RouterConfig(model=MODEL, cors_origins=(origin,)).cors_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    [
        "", "a.org", "https://a.org/", "https://a.org/chat", "https://A.org", "://", "https://", "https://[",
        "https://a.org:443", "http://a.org:80", "https://user@a.org",
    ],
)  # fmt: skip
def test_invalid_origins_are_rejected(origin: str) -> None:
    with pytest.raises(OptionError, match=r"cors_origins: .* must be"):
        RouterConfig(model=MODEL, cors_origins=(origin,))
