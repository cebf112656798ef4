"""API keys at real routers: no secret in a log, on a command line or in a response, even after errors."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
import psutil
import pytest

from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_router, wait_workers
from tests.integration.simulated_process import simulated
from tests.redis_server import redis_server
from tests.unit.router.api_keys import TestKeys, bearer

CHAT = "/v1/chat/completions"
PRIVATE = "the-private-thing"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": PRIVATE}], "max_tokens": 4, "cache_salt": PRIVATE}
WRONG_KEY = "sk-somebody-elses"


async def test_no_secret_in_a_log_and_no_path_in_a_response(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key, poor = keys.add("rich"), keys.add("poor", requests_per_minute=1)
    flags = ("--port=0", "--grpc-port=0", "--log-level=debug", "--max-body-bytes=100000", "--api-key=sk-from-a-flag")
    async with (
        simulated("--colocated=2") as workers,
        router_process(tmp_path, *flags, f"--workers={workers['addresses']}", f"--api-keys-file={keys.path}") as router,
        router.client() as client,
    ):
        await wait_workers(client, 2)
        answers = [
            *await _good_and_bad(client, key),
            *[await client.post(CHAT, json=BODY, headers=bearer(poor)) for _ in range(2)],
            await client.post(CHAT, json=BODY, headers=bearer("sk-from-a-flag")),
        ]
        told_over_grpc = [await _refusal(router, given) for given in (None, WRONG_KEY, poor)]
        for count, text in enumerate((f"keys: [{key}", f"keys:\n- {{name: a, sha256: {key}}}"), 1):
            keys.replace(text)
            await _until_logged(router, client, key, "the API keys are unchanged", count)
        keys.write()
        await _until_logged(router, client, key, "API keys are in use now", 1)
    statuses = {answer.status_code for answer in answers}
    assert statuses == {200, 400, 401, 404, 405, 413, 415, 429}
    log = router.log()
    assert " DEBUG " in log
    for secret in (key, poor, WRONG_KEY, "sk-", PRIVATE):
        assert secret not in log
    for text in [*told_over_grpc, *(answer.text for answer in answers if answer.status_code != 200)]:
        for path in (str(MODEL), str(tmp_path), os.getcwd(), "site-packages", ".py", "sk-"):
            assert path not in text


async def _good_and_bad(client: httpx.AsyncClient, key: str) -> Sequence[httpx.Response]:
    """Send valid and invalid requests and return the responses."""
    headers = bearer(key)
    wanted: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", CHAT, {"json": BODY}),
        ("POST", CHAT, {"json": {**BODY, "stream": True}}),
        ("POST", CHAT, {"json": {**BODY, "model": "../../etc/passwd"}}),
        ("POST", CHAT, {"json": {**BODY, "temperature": "warm"}}),
        ("POST", CHAT, {"json": {**BODY, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}}),
        ("POST", CHAT, {"json": {**BODY, "chat_template_kwargs": {"chat_template": "/etc/passwd"}}}),
        ("POST", CHAT, {"json": {**BODY, "messages": [{"role": "user", "content": PRIVATE * 10_000}]}}),
        ("POST", CHAT, {"content": b"{", "headers": {"content-type": "application/json"}}),
        ("POST", CHAT, {"content": b"{}"}),
        ("POST", "/v1/completions", {"json": {"prompt": [1 << 40]}}),
        ("POST", "/detokenize", {"json": {"tokens": [-1]}}),
        ("GET", "/v1/models/other", {}),
        ("GET", "/static/../../etc/passwd", {}),
        ("PUT", CHAT, {"json": BODY}),
    ]
    answers = [
        await client.request(method, path, **{**options, "headers": {**options.get("headers", {}), **shown}})
        for method, path, options in wanted
        for shown in (headers, bearer(WRONG_KEY))
    ]
    hinted = {**headers, "x-baton-decode": "nobody"}
    answers.append(await client.post(CHAT, json=BODY, headers=hinted))
    answers.append(await client.post(CHAT, json=BODY, headers={**headers, "x-baton-timeout": "soon"}))
    async with httpx.AsyncClient(base_url=client.base_url, trust_env=False, verify=False) as another:
        answers += [await another.get("/v1/models"), await another.get("/v1/models", headers=headers)]
    return answers


async def _refusal(router: RouterProcess, key: str | None) -> str:
    """Return the error of a gRPC call that must fail."""
    async with grpc.aio.insecure_channel(str(router.grpc_address)) as channel:
        metadata = tuple(bearer(key).items()) if key is not None else ()
        call = InferenceStub(channel).Generate(GenerateRequest(text=PRIVATE), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(aiter(call))
    return f"{caught.value.code()} {caught.value.details()}"


async def _until_logged(router: RouterProcess, client: httpx.AsyncClient, key: str, text: str, count: int) -> None:
    """Wait until the router has logged the text `count` times; requests with a key make it check its file."""
    async with asyncio.timeout(30):
        while router.log().count(text) < count:
            assert (await client.get("/v1/models", headers=bearer(key))).status_code == 200
            await asyncio.sleep(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("spawned_processes")  # it reads command lines
async def test_processes_that_share_a_port_use_the_environments_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_API_KEY", "sk-from-the-environment")
    monkeypatch.setenv("BATON_REGISTRY", "redis://:sk-hunter2@127.0.0.1:1/0")
    flags = ("--port=0", "--processes=2", "--log-level=debug", "--protect-operations")
    async with router_process(tmp_path, *flags, module=("baton", "router")) as router:
        parent = psutil.Process(router.child.pid)
        lines = [" ".join(each.cmdline()) for each in (parent, *parent.children(recursive=True))]
        assert len(lines) == 3
        assert sum("--api-key=sha256:" in line for line in lines) == 2
        assert not any("sk-" in line for line in lines)
        for _ in range(8):  # connections are spread over the processes
            async with router.client() as client:
                assert (await client.get("/workers")).status_code == 401
                answer = await client.get("/metrics", headers=bearer("sk-from-the-environment"))
                assert answer.status_code == 200
                assert answer.text.count("baton:router_process_up") >= 2
    assert "sk-" not in router.log()


async def test_a_registrys_password_is_not_disclosed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with redis_server(tmp_path / "redis") as redis:
        monkeypatch.setenv("BATON_REGISTRY", redis.url.replace("redis://", "redis://:hunter2@"))  # it needs none
        flags = ("--port=0", "--log-level=debug")
        async with router_process(tmp_path, *flags) as router, router.client() as client:
            view = await wait_router(client, lambda view: view["router"]["registry"]["error"] is not None)
            assert "hunter2" not in str(view)
            assert "hunter2" not in (await client.get("/metrics")).text
        assert "hunter2" not in router.log()


async def test_an_invalid_file_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    keys.replace("keys: [sk-secret]")
    with pytest.raises(AssertionError, match=r"keys\[0\]: must be a mapping with a name and a sha256") as caught:
        async with router_process(tmp_path, "--port=0", f"--api-keys-file={keys.path}"):
            pass
    assert "secret" not in str(caught.value)
