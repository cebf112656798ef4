"""Authentication and authorization over HTTP and gRPC."""

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest

from baton.protos.router_pb2 import GenerateRequest, GenerateResponse
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router.auth.cache_secret import CacheSecret
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.http.test_request_limits import ask
from tests.unit.router.rigs.running_router import RunningRouter, http_client, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]
BODY: dict[str, Any] = {"messages": HELLO, "max_tokens": 2}
PROMPT: dict[str, Any] = {"prompt": [300, 301, 302, 303], "max_tokens": 6}
SECRET = "of all routers in this test"
SALTS = CacheSecret(SECRET)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestKeys:
    """A file of keys that routers check at every request."""
    monkeypatch.setattr("baton.router.auth.client.CHECK_INTERVAL_S", 0.0)
    return TestKeys(tmp_path)


def error(answer: httpx.Response) -> dict[str, Any]:
    content: dict[str, Any] = answer.json()["error"]
    assert set(content) == {"message", "type", "param", "code"}
    return content


async def generate(router: RunningRouter, key: str | None, **fields: Any) -> list[GenerateResponse]:
    metadata = tuple(bearer(key).items()) if key is not None else ()
    async with grpc.aio.insecure_channel(router.grpc_address) as channel:
        call = InferenceStub(channel).Generate(GenerateRequest(**fields), metadata=metadata)
        return [response async for response in call]


async def test_without_a_key_only_open_paths_are_served(keys: TestKeys) -> None:
    key = keys.add("a")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        shown = (key, f"Basic {key}", "Bearer")
        wrong = ({}, bearer("sk-other"), *({"authorization": each} for each in shown))
        posts = [(path, BODY) for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize", f"{CHAT}?a=1")]
        for headers in wrong:
            for path, body in posts:
                answer = await router.http.post(path, json=body, headers={**headers, "x-request-id": "mine"})
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert (error(answer)["type"], error(answer)["code"]) == ("invalid_request_error", "invalid_api_key")
                assert answer.headers["x-request-id"] == "mine"
                assert "sk-" not in answer.text
            for path in (
                "/v1/models",
                "/v1/models/bundled_model",
                "/v1/nothing",
                "/nothing",
                "/console/events",
                "//health",
            ):
                url = f"{router.url}{path}"  # whole: httpx would drop the name of `//health`
                answer = await router.http.get(url, headers={**headers, "x-request-id": "mine"})
                assert (answer.status_code, error(answer)["code"]) == (401, "invalid_api_key")
                assert answer.headers["x-request-id"] == "mine"
            assert (await router.http.put(CHAT, json=BODY, headers=headers)).status_code == 401
        for path in (
            "/",
            "/console",
            "/health",
            "/ping",
            "/ready",
            "/metrics",
            "/workers",
            "/pools",
            "/version",
            "/openapi.json",
        ):
            assert (await router.http.get(path)).status_code == 200
        for headers in (bearer(key), {"authorization": f"bEARER   {key}"}):
            assert (await router.http.post(CHAT, json=BODY, headers=headers)).status_code == 200
            assert (await router.http.get("/v1/models", headers=headers)).status_code == 200
            assert (await router.http.get("/nothing", headers=headers)).status_code == 404
        assert (await router.http.post("/tokenize", json={"prompt": "a"}, headers=bearer(key))).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 200), ("0.0.0.0", 401)])
async def test_operations_require_a_key_if_other_machines_can_connect(keys: TestKeys, host: str, status: int) -> None:
    key = keys.add("a")
    async with running_router(host=host, api_keys_file=str(keys.path)) as router, http_client() as client:
        url = router.url.replace("0.0.0.0", "127.0.0.1")
        for path in ("/workers", "/pools", "/metrics", "/version", "/openapi.json"):
            assert (await client.get(f"{url}{path}")).status_code == status
            assert (await client.get(f"{url}{path}", headers=bearer(key))).status_code == 200
        assert (await client.get(f"{url}/health")).status_code == 200


async def test_operations_can_require_a_key(keys: TestKeys) -> None:
    key = keys.add("a")
    async with running_router(api_keys_file=str(keys.path), protect_operations=True) as router:
        for path in ("/metrics", "/workers", "/pools", "/version", "/openapi.json"):
            assert (await router.http.get(path)).status_code == 401
            assert (await router.http.get(path, headers=bearer(key))).status_code == 200
        for path in ("/health", "/ping"):
            assert (await router.http.get(path)).status_code == 200
        assert set((await router.http.get("/ready")).json()) == {"error"}  # it has no worker, and tells of none


async def test_the_openai_client_raises_the_error(keys: TestKeys) -> None:
    key = keys.add("a")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        with pytest.raises(openai.AuthenticationError) as caught:
            await router.openai.chat.completions.create(model="", messages=HELLO)
        assert caught.value.code == "invalid_api_key"
        client = openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=key, http_client=http_client())
        async with client:
            answer = await client.chat.completions.create(model="", messages=HELLO, max_tokens=2)
            assert answer.choices[0].message.content


async def test_a_key_of_the_command_line() -> None:
    async with running_router(ScriptedWorker(), api_key=("token-abc", "schl\u00fcssel")) as router:
        for key in ("token-abc", "schl\u00fcssel"):
            headers = [(b"authorization", f"Bearer {key}".encode())]
            assert (await router.http.post(CHAT, json=BODY, headers=headers)).status_code == 200
        assert (await router.http.post(CHAT, json=BODY, headers=bearer("token-abcd"))).status_code == 401
        assert await generate(router, "token-abc", text="a")


async def test_without_keys_every_request_is_served() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        for headers in ({}, bearer("none"), {"authorization": "Basic x"}):
            answer = await router.http.post(CHAT, json={**BODY, "cache_salt": "mine"}, headers=headers)
            assert answer.status_code == 200
            assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        assert await generate(router, None, text="a")
    assert [command.cache_salt for command in worker.commands] == ["mine"] * 3 + [""]
    assert {command.tenant for command in worker.commands} == {""}


@pytest.mark.parametrize("more", ["", "?a=1"])
async def test_the_response_precedes_the_body(keys: TestKeys, more: str) -> None:
    keys.add("a")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router, asyncio.timeout(20):
        host, _, port = router.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            head = "host: a\r\ncontent-type: application/json\r\ncontent-length: 16000000\r\n\r\n"
            writer.write(f"POST {CHAT}{more} HTTP/1.1\r\n{head}".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 401 ")
            for _ in range(160):  # what comes all the same is read and forgotten
                writer.write(b" " * 100_000)
                await writer.drain()
            assert (await router.http.get("/health")).status_code == 200
        finally:
            writer.close()


async def test_grpc_asks_for_the_key_in_its_metadata(keys: TestKeys) -> None:
    key = keys.add("a")
    worker = ScriptedWorker()
    async with running_router(worker, api_keys_file=str(keys.path), cache_secret=SECRET) as router:
        for wrong in (None, "sk-other", ""):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await generate(router, wrong, text="a")
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "API key" in (caught.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # larger than a message may be: it is not even read
            await generate(router, None, text="a" * (17 << 20))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await generate(router, key, text="a", fairness_key="b", priority=-5, cache_salt="mine")
        async with grpc.aio.insecure_channel(router.grpc_address) as channel:
            call = InferenceStub(channel).Generate(GenerateRequest(text="a"), metadata=(("x-api-key", key),))
            assert [response async for response in call]
    command, other = worker.commands
    assert (command.cache_salt, command.priority) == (SALTS.salt("key:a", "mine"), 0)
    assert other.cache_salt == SALTS.salt("key:a", "")
    assert command.tenant == other.tenant == SALTS.salt("key:a", "")


async def test_a_removed_key_is_rejected_at_once(keys: TestKeys) -> None:
    key, other = keys.add("a"), keys.add("b")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        assert (await router.http.post(CHAT, json=BODY, headers=bearer(key))).status_code == 200
        keys.remove("a")
        assert (await router.http.post(CHAT, json=BODY, headers=bearer(key))).status_code == 401
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(router, key, text="a")
        assert (await router.http.post(CHAT, json=BODY, headers=bearer(other))).status_code == 200


async def test_tenants_do_not_find_each_others_prompts(keys: TestKeys) -> None:
    a, b, c = keys.add("a"), keys.add("b", cache_salt="team"), keys.add("c", cache_salt="team")
    worker = ScriptedWorker()
    async with running_router(worker, api_keys_file=str(keys.path), cache_secret=SECRET) as router:

        async def cached(key: str, salt: str | None = None) -> int:
            answer = await router.http.post(COMPLETIONS, json={**PROMPT, "cache_salt": salt}, headers=bearer(key))
            return int(answer.headers["x-baton-cached-tokens"])

        assert [await cached(key) for key in (a, b, a)] == [0, 0, 4]
        assert await cached(c) == 4  # of one scope with b
        assert [await cached(a, "mine"), await cached(c, "mine"), await cached(b, "mine")] == [0, 0, 4]
        assert await cached(a, SALTS.salt("scope:team", "")) == 0
        assert (await router.http.post("/tokenize", json={"prompt": "a"}, headers=bearer(a))).status_code == 200
    salts = {command.cache_salt for command in worker.commands}
    assert salts == {
        *(SALTS.salt("key:a", own) for own in ("", "mine", SALTS.salt("scope:team", ""))),
        *(SALTS.salt("scope:team", own) for own in ("", "mine")),
    }
    tenants = {command.tenant for command in worker.commands}
    assert tenants == {SALTS.salt(name, "") for name in ("key:a", "scope:team")}  # whatever salts they choose
    async with running_router(worker, api_keys_file=str(keys.path), shared_cache=True) as router:
        assert [await cached(key) for key in (a, b, c)] == [0, 4, 4]


async def test_a_request_is_no_more_urgent_than_its_key(keys: TestKeys) -> None:
    key = keys.add("a", priority=3)
    worker = ScriptedWorker()
    async with running_router(worker, api_keys_file=str(keys.path)) as router:
        for priority in (-7, 0, 3, 8):
            body = {**BODY, "priority": priority}
            assert (await router.http.post(CHAT, json=body, headers=bearer(key))).status_code == 200
        assert await generate(router, key, text="a")
        assert await generate(router, key, text="a", priority=(1 << 31) - 1)
    assert [command.priority for command in worker.commands] == [3, 3, 6, 11, 3, (1 << 31) - 1]


async def test_requests_over_the_rate_wait_or_are_refused(keys: TestKeys) -> None:
    key, other = keys.add("a", requests_per_minute=2), keys.add("b")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        for left in (1, 0):
            answer = await router.http.post(CHAT, json={**BODY, "stream": True}, headers=bearer(key))
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        for path in (CHAT, f"{CHAT}?a=1", "/tokenize"):
            answer = await router.http.post(path, json=BODY, headers=bearer(key))
            assert (answer.status_code, error(answer)["type"]) == (429, "requests")
            assert error(answer)["code"] == "rate_limit_exceeded"
            assert 1 <= int(answer.headers["retry-after"]) <= 30
            assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generate(router, key, text="a")
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert 1 <= int(dict(caught.value.trailing_metadata() or ())["retry-after"]) <= 30  # type: ignore[arg-type]  # text
        answer = await router.http.post(CHAT, json=BODY, headers=bearer(other))
        assert (answer.status_code, "x-ratelimit-limit-requests" in answer.headers) == (200, False)
        assert (await router.http.get("/v1/models", headers=bearer(key))).status_code == 200


async def test_tokens_of_prompts_and_outputs_are_charged(keys: TestKeys) -> None:
    key = keys.add("a", tokens_per_minute=20)
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:

        async def left(body: dict[str, Any]) -> int:
            answer = await router.http.post(COMPLETIONS, json=body, headers=bearer(key))
            assert answer.status_code == 200, answer.text
            return int(answer.headers["x-ratelimit-remaining-tokens"])

        assert 10 <= await left(PROMPT) <= 13
        assert 6 <= await left({**PROMPT, "stream": True}) <= 12  # its output is not here yet
        keys.change("a", tokens_per_minute=21)
        assert len(await generate(router, key, token_ids={"ids": [300] * 15}, sampling={"max_tokens": 9})) > 0
        answer = await router.http.post(COMPLETIONS, json=PROMPT, headers=bearer(key))
        assert (answer.status_code, error(answer)["type"]) == (429, "tokens")
        assert 6 <= int(answer.headers["retry-after"]) <= 12  # three too many, and one to begin with


async def test_output_of_a_disconnected_client_is_charged(keys: TestKeys) -> None:
    key = keys.add("a", tokens_per_minute=1000)
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        started_s = time.monotonic()
        body = {**PROMPT, "max_tokens": 200, "stream": True}
        async with router.http.stream("POST", COMPLETIONS, json=body, headers=bearer(key)) as answer:
            num_events = 0
            async for line in answer.aiter_lines():
                num_events += line.startswith("data: ")
                if num_events == 50:  # some may have come together: of a prompt of 4 tokens and 50 others at least
                    break
        while (await router.http.get("/workers")).json()["router"]["inflight"]:
            await asyncio.sleep(0.005)
        answer = await router.http.post(COMPLETIONS, json=PROMPT, headers=bearer(key))
        refilled = (time.monotonic() - started_s) * 1000 / 60
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) <= 1000 - 54 - 10 + refilled


async def test_completions_in_flight_are_counted(keys: TestKeys) -> None:
    key, other = keys.add("a", max_inflight=2), keys.add("b", max_inflight=2)
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, api_keys_file=str(keys.path)) as router:
        first = asyncio.create_task(router.http.post(CHAT, json={**BODY, "n": 2}, headers=bearer(key)))
        await until(lambda: bool(worker.commands))
        for path, body in ((CHAT, BODY), ("/tokenize", {"prompt": "a"})):
            answer = await router.http.post(path, json=body, headers=bearer(key))
            assert (answer.status_code, error(answer)["code"]) == (429, "rate_limit_exceeded")
        with pytest.raises(grpc.aio.AioRpcError, match="in flight"):
            await generate(router, key, text="a")
        answer = await router.http.post(CHAT, json={**BODY, "n": 3}, headers=bearer(other))
        assert (answer.status_code, error(answer)["param"]) == (400, "n")
        worker.go_on.set()
        assert (await first).status_code == 200
        assert (await router.http.post(CHAT, json={**BODY, "n": 2}, headers=bearer(key))).status_code == 200


async def test_a_key_in_a_trailer_is_ignored(keys: TestKeys) -> None:
    key = keys.add("team")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        for line in (b"GET /v1/models", b"POST /v1/chat/completions"):
            request = line + b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
            trailer = f"authorization: Bearer {key}\r\n\r\n".encode()
            assert (await ask(router, request + trailer)).startswith(b"HTTP/1.1 401 ")
