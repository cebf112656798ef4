"""Limits of a request: each error names its limit, over HTTP and gRPC."""

import asyncio
from typing import Any

import grpc
import pytest

from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from baton.router.http.post_protocol import MAX_HEAD_BYTES
from baton.router.workers import attach_stream
from tests.unit.router.rigs.running_router import RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]
LONG = "x" * 1025


async def test_over_http() -> None:
    worker = ScriptedWorker()
    worker.max_model_len = 300_000
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        (CHAT, {"messages": HELLO, "user": LONG}, "user: String should have at most 1024 characters", "user"),
        (CHAT, {"messages": HELLO, "cache_salt": LONG}, "at most 1024 characters", "cache_salt"),
        (CHAT, {"messages": HELLO, "prompt_cache_key": LONG}, "at most 1024 characters", "prompt_cache_key"),
        (
            CHAT,
            {"messages": HELLO, "metadata": {str(n): "" for n in range(17)}},
            "metadata: has 17 entries, but at most 16",
            "metadata",
        ),
        (CHAT, {"messages": HELLO, "metadata": {"n" * 65: ""}}, "at most 64 characters", f"metadata.{'n' * 65}.[key]"),
        (CHAT, {"messages": HELLO, "metadata": {"n": "v" * 513}}, "at most 512 characters", "metadata.n"),
        (
            CHAT,
            {"messages": HELLO, "chat_template_kwargs": {str(n): 1 for n in range(65)}},
            "has 65 entries, but at most 64 are accepted",
            "chat_template_kwargs",
        ),
        (
            "/tokenize",
            {"messages": HELLO, "chat_template_kwargs": {str(n): 1 for n in range(65)}},
            "has 65 entries, but at most 64 are accepted",
            "chat_template_kwargs",
        ),
        (
            COMPLETIONS,
            {"prompt": "a", "logprobs": 20, "max_tokens": 50_000},
            "the response may have 1050000 logprobs, over the limit of 1048576",
            "logprobs",
        ),
        (
            COMPLETIONS,
            {"prompt": [300] * 50_000, "prompt_logprobs": 20, "max_tokens": 1},
            "the response may have 1050000 logprobs, over the limit of 1048576",
            "logprobs",
        ),
        (
            COMPLETIONS,
            {"prompt": [300] * 10_000, "echo": True, "logprobs": 20, "n": 5, "max_tokens": 1, "stream": True},
            "the response may have 1050000 logprobs, over the limit of 1048576",
            "logprobs",
        ),
        (
            COMPLETIONS,
            {"prompt": " " * 600_000, "echo": True, "n": 128, "max_tokens": 1, "stream": True},
            "the prompts have 76800000 characters in all completions together, over the limit of 67108864 for an echo",
            "echo",
        ),
    ]
    async with running_router(worker) as router:
        for path, body, message, param in cases:
            answer = await router.http.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (400, param)
            assert message in error["message"]
        for name in ("x-baton-decode", "x-baton-prefill"):
            answer = await router.http.post(CHAT, json={"messages": HELLO}, headers={name: "d" * 129})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert not worker.commands


async def test_repeated_text_is_truncated() -> None:
    async with running_router(ScriptedWorker()) as router:
        long = "m" * 1_000_000
        answers = [
            await router.http.post(CHAT, json={"messages": HELLO, "model": long}),
            await router.http.post(CHAT, json={"messages": HELLO, "logit_bias": {long: 1}}),
            await router.http.post(CHAT, json={"messages": [{"role": "user", "content": [{"type": long}]}]}),
        ]
        assert [answer.status_code for answer in answers] == [404, 400, 400]
        assert all(len(answer.text) < 1100 for answer in answers)


async def test_over_grpc() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"fairness_key": LONG}, "fairness_key has 1025 characters, over the limit of 1024"),
        ({"cache_salt": LONG}, "cache_salt has 1025 characters"),
        ({"hints": {"decode_worker": "d" * 129}}, "hints.decode_worker must be 1 to 128 visible ASCII"),
        ({"hints": {"prefill_worker": "a b"}}, "hints.prefill_worker must be 1 to 128 visible ASCII"),
        ({"stop": ["\u20ac" * 2000]}, "must have 1 to 1024 characters"),
        ({"sampling": {"prompt_logprobs": 20}, "token_ids": {"ids": [300] * 50_000}}, "1050000 logprobs"),
        ({"model": "\u20ac" * 100_000}, "does not exist"),
    ]
    worker = ScriptedWorker()
    worker.max_model_len = 300_000
    async with running_router(worker) as router, grpc.aio.insecure_channel(router.grpc_address) as channel:
        for fields, message in cases:
            given = fields if "token_ids" in fields else {"text": "a", **fields}
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(InferenceStub(channel).Generate(GenerateRequest(**given))))
            assert message in (caught.value.details() or "")
            assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert not worker.commands


async def ask(router: RunningRouter, *parts: bytes) -> bytes:
    """Return all that the router sends until it closes the connection."""
    host, _, port = router.url.removeprefix("http://").rpartition(":")
    async with asyncio.timeout(20):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            return await reader.read()
        except ConnectionError:
            return b"broken"
        finally:
            writer.close()


async def test_headers_are_limited() -> None:
    async with running_router(ScriptedWorker()) as router:
        begin = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"
        large = b"x-more: " + b"a" * MAX_HEAD_BYTES + b"\r\n"
        many = b"".join(b"x-%d: a\r\n" % number for number in range(8000))
        for head in (large, many, b"a:\r\n" * 9000):
            for parts in ([begin + head + b"\r\n"], [begin, head[:-100], head[-100:]], [begin, head * 100]):
                answer = await ask(router, *parts)
                assert answer == b"broken" or answer.startswith(b"HTTP/1.1 431 ")
                assert b"over the limit of 32768 bytes" in answer or answer == b"broken"
        body = b'{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}'
        good = begin + b"x-more: " + b"a" * 30_000 + b"\r\ncontent-type: application/json\r\n"
        padded = body + b" " * 200_000
        whole = good + b"content-length: %d\r\n\r\n" % len(padded) + padded
        assert (await ask(router, whole)).startswith(b"HTTP/1.1 200 ")
        chunked = good + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
        assert (await ask(router, chunked + b"x-end: 1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        answer = await ask(router, chunked, *[b"x-end: " + b"a" * 1000 + b"\r\n"] * 1000)
        assert answer == b"broken" or answer.startswith(b"HTTP/1.1 431 ")
        assert (await router.http.get("/health")).status_code == 200


async def test_large_options_of_many_completions_break_no_stream() -> None:
    worker = ScriptedWorker()  # takes messages of up to 4 MB
    async with running_router(worker) as router:
        bias = {str(token_id): 1.5 for token_id in range(4096)}
        body = {"prompt": "a", "n": 120, "max_tokens": 1, "logit_bias": bias}
        response = await router.http.post(COMPLETIONS, json=body)
        assert response.status_code == 200, response.text
        assert len(response.json()["choices"]) == 120
        assert len(worker.commands) == 120  # none was sent again
        assert sum(command.ByteSize() for command in worker.commands) > 4 << 20


async def test_a_prompt_too_large_for_a_command_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_stream, "MAX_COMMAND_BYTES", 2000)
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        body = {"prompt": [300] * 200, "max_tokens": 1, "temperature": 0}
        response = await router.http.post(COMPLETIONS, json=body)
        assert response.status_code == 400, response.text
        assert "over the limit of 2000 for a request to a worker" in response.json()["error"]["message"]
        response = await router.http.post(COMPLETIONS, json={**body, "prompt": [300] * 20})
        assert response.status_code == 200, response.text
