"""Errors in OpenAI's shape."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from baton.protos import common_pb2
from baton.protos.worker_pb2 import RequestDelta
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

HELLO: Any = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}
CONTENT, PART, KWARGS = "messages[0].content", "messages[0].content[0].type", "chat_template_kwargs"
IMAGE: Any = {"type": "image_url", "image_url": "data:image/png;base64,"}
NO_URL = {"type": "image_url"}
IMAGE_FIELD = f"{CONTENT}[0].image_url"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def refusal(code: int, message: str) -> RequestDelta:
    error = {"code": code, "message": message}
    return RequestDelta(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)  # type: ignore[arg-type]


def check(answer: httpx.Response, status: int, message: str, param: str | None = None) -> None:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert message in body["error"]["message"]
    assert (answer.status_code, body["error"]["param"]) == (status, param)


async def test_errors_name_what_is_wrong_with_a_request() -> None:
    async with running_router(ScriptedWorker(), max_choices=8, max_stop=2, tool_call_parser="none") as router:
        cases: list[tuple[str, dict[str, Any], str, str | None]] = [
            (CHAT, {}, "Field required", "messages"),
            (CHAT, {"messages": []}, "at least one message", "messages"),
            (CHAT, {"messages": HELLO, "temperature": "warm"}, "valid number", "temperature"),
            (CHAT, {"messages": HELLO, "temperature": -1}, "greater than or equal to 0, not -1", "temperature"),
            (CHAT, {"messages": HELLO, "top_p": 0}, "greater than 0", "top_p"),
            (CHAT, {"messages": HELLO, "n": 9}, "limit of 8", "n"),
            (CHAT, {"messages": HELLO, "n": 0}, "greater than or equal to 1", "n"),
            (CHAT, {"messages": HELLO, "stop": ["a", "b", "c"]}, "limit of 2", "stop"),
            (CHAT, {"messages": HELLO, "stop": ""}, "at least 1 character", "stop[0]"),
            (CHAT, {"messages": HELLO, "tools": [TOOL]}, "tools are not supported", "tools"),
            (CHAT, {"messages": HELLO, "audio": {"voice": "x"}}, "audio is not supported", "audio"),
            (CHAT, {"messages": HELLO, "top_logprobs": 2}, "logprobs is true", "top_logprobs"),
            (CHAT, {"messages": HELLO, "logprobs": True, "top_logprobs": 21}, "equal to 20", "top_logprobs"),
            (CHAT, {"messages": HELLO, "stream_options": {}}, "stream is true", "stream_options"),
            (CHAT, {"messages": HELLO, "stream": True, "prompt_logprobs": 1}, "not available", "prompt_logprobs"),
            (CHAT, {"messages": HELLO, "logit_bias": {"99999": 1}}, "below 4096", "logit_bias"),
            (CHAT, {"messages": HELLO, "min_tokens": 9, "max_tokens": 4}, "min_tokens is 9", "min_tokens"),
            (CHAT, {"messages": HELLO, "continue_final_message": True}, "not both", "continue_final_message"),
            (CHAT, {"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "only text and image_url", PART),
            (CHAT, {"messages": [{"role": "user", "content": [NO_URL]}]}, "has no image_url", f"{CONTENT}[0]"),
            (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "takes no images", IMAGE_FIELD),
            ("/tokenize", {"messages": [{"role": "user", "content": [IMAGE]}]}, "takes no images", IMAGE_FIELD),
            (CHAT, {"messages": HELLO, "chat_template_kwargs": {"tokenize": 1}}, "must not set tokenize", KWARGS),
            (COMPLETIONS, {"prompt": ""}, "prompt is empty", "prompt"),
            (COMPLETIONS, {"prompt": []}, "prompt is empty", "prompt"),
            (COMPLETIONS, {"prompt": [4096]}, "outside 0 to 4095", "prompt"),
            (COMPLETIONS, {"prompt": None}, "prompt must be a string, a list of strings", "prompt"),
            (COMPLETIONS, {"prompt": [True]}, "prompt[0] is True; prompt must be", "prompt"),
            (COMPLETIONS, {"prompt": [1, "2"]}, "prompt[1] is '2', but must be a token id", "prompt"),
            (COMPLETIONS, {"prompt": "a", "stop": {}}, "stop: must be a string or a list", "stop"),
            (COMPLETIONS, {"prompt": "a", "stop": ["b", 1]}, "Input should be a valid string, not 1", "stop[1]"),
            (COMPLETIONS, {"prompt": "a", "stop_token_ids": ["1"]}, "valid integer", "stop_token_ids[0]"),
            (COMPLETIONS, {"prompt": "a", "stop_token_ids": [1] * 5000}, "has 5000 entries", "stop_token_ids"),
            (COMPLETIONS, {"prompt": "a", "min_tokens": 300}, "but the context leaves 255 tokens", "min_tokens"),
            (COMPLETIONS, {"prompt": "a", "best_of": -4}, "greater than or equal to 1", "best_of"),
            (COMPLETIONS, {"prompt": "a" * 5633}, "maximum context length is 256 tokens", "prompt"),
            (CHAT, {"messages": [{"role": "user", "content": "a" * 5633}]}, "at most 5632 characters", "messages"),
            (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content: must be a string", CONTENT),
            (CHAT, {"messages": [None] * 20000}, "has 20000 messages", "messages"),
            (CHAT, {"messages": HELLO, "chat_template_kwargs": {"self": 1}}, "must not set self", KWARGS),
            (COMPLETIONS, {"prompt": "a", "suffix": "b"}, "suffix is not supported", "suffix"),
            (COMPLETIONS, {"prompt": "a", "best_of": 2}, "more than n", "best_of"),
            (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "unless echo", "max_tokens"),
            (COMPLETIONS, {"prompt": "a", "max_tokens": 5000}, "maximum context length is 256 tokens", "max_tokens"),
            (COMPLETIONS, {"prompt": [5] * 256}, "256 input tokens", "prompt"),
            (CHAT, {"messages": [{"role": "user", "content": "a b" * 300}]}, "input tokens", "messages"),
            ("/tokenize", {}, "prompt or messages", None),
            ("/tokenize", {"prompt": "a", "messages": HELLO}, "must not both be given", "prompt"),
            ("/detokenize", {"tokens": [-1]}, "outside 0 to 4095", "tokens"),
            ("/detokenize", {"tokens": [True]}, "tokens[0] is True", "tokens"),
            ("/detokenize", {"tokens": [5] * 257}, "has 257 ids", "tokens"),
            ("/tokenize", {"prompt": "a" * 5633}, "at most 5632 characters", "prompt"),
        ]  # fmt: skip
        for path, body, message, param in cases:
            check(await router.http.post(path, json=body), 400, message, param)


async def test_harmless_and_neutral_fields_are_accepted() -> None:
    async with running_router(ScriptedWorker()) as router:
        body = {
            "messages": HELLO, "max_tokens": 2, "user": "me", "store": False, "tools": [], "tool_choice": "none",
            "response_format": {"type": "text"}, "modalities": ["text"], "metadata": {"a": "b"},
        }  # fmt: skip
        assert (await router.http.post(CHAT, json=body)).status_code == 200


async def test_broken_bodies_and_wrong_paths() -> None:
    async with running_router(ScriptedWorker(), max_body_bytes=2000) as router:
        http = router.http
        headers = {"content-type": "application/json"}
        check(await http.post(CHAT, content=b"{", headers=headers), 400, "no valid JSON")
        check(await http.post(CHAT, content=b"[" * 3000, headers=headers), 413, "limit of 2000 bytes")

        async def endless() -> Any:
            for _ in range(100):
                yield b" " * 100

        check(await http.post(CHAT, content=endless(), headers=headers), 413, "limit of 2000 bytes")
        lone = b'{"prompt": "\\ud800"}'
        check(await http.post(COMPLETIONS, content=lone, headers=headers), 400, "no valid JSON")
        deep = b'{"prompt": ' + b"[" * 1900
        check(await http.post(COMPLETIONS, content=deep, headers=headers), 400, "nested over 1024 levels deep")
        form = {"content-type": "application/x-www-form-urlencoded"}  # what curl -d says
        check(
            await http.post(COMPLETIONS, content=b'{"prompt": "a"}', headers=form),
            415,
            "content-type: application/json",
        )
        for method, path in (
            ("GET", "/v1/nothing"),
            ("POST", "/v1/rerank"),
            ("DELETE", "/nothing"),
            ("GET", "/health/"),
        ):
            unknown = await http.request(method, path)
            check(unknown, 404, f"Unknown request URL: {method} {path}.")
            assert unknown.json()["error"]["code"] == "unknown_url"
        for method, path, allowed in (
            ("GET", CHAT, "POST"),
            ("PUT", "/ping", "GET, HEAD, POST"),
            ("POST", "/health", "GET, HEAD"),
        ):
            wrong = await http.request(method, path)
            check(wrong, 405, f"Not allowed: {method} {path}.")
            assert (wrong.json()["error"]["code"], wrong.headers["allow"]) == ("method_not_supported", allowed)
        check(await http.get("/v1/models/other"), 404, "`other` does not exist")


async def test_bodies_of_mostly_structure_are_rejected_unparsed() -> None:
    async with running_router(ScriptedWorker()) as router:
        body = b'{"prompt": [' + b",".join([b"[5]"] * 300_000) + b"]}"
        answer = await router.http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
        check(answer, 400, "lists, objects and keys, most of them in this field", "prompt")
        keys = b",".join(b'"%d":1' % number for number in range(300_000))
        body = b'{"messages": [], "chat_template_kwargs": {' + keys + b"}}"
        answer = await router.http.post(CHAT, content=body, headers={"content-type": "application/json"})
        check(answer, 400, "lists, objects and keys, most of them in this field", "chat_template_kwargs")
        tools = b",".join([b'{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}'] * 20_000)
        body = b'{"messages":[{"role":"user","content":"[{:\\""}],"tools":[' + tools + b"]}"
        answer = await router.http.post(CHAT, content=body, headers={"content-type": "application/json"})
        check(answer, 400, "tools: the body has over 131072 lists", "tools")
        elements = b'{"prompt": [' + b"1," * 600_000 + b"1]}"
        answer = await router.http.post(COMPLETIONS, content=elements, headers={"content-type": "application/json"})
        check(answer, 400, "prompt: the body has over 524288 elements of lists", "prompt")
        answer = await router.http.post(
            COMPLETIONS, content=b"[" * 300_000, headers={"content-type": "application/json"}
        )
        check(answer, 400, "the body has over 131072 lists, objects and keys")


async def test_arguments_of_mostly_structure_are_rejected_unparsed() -> None:
    async with running_router(ScriptedWorker()) as router:
        texts = ['{"a": [' + "[]," * 50_000 + "0]}", '{"a": [' + "[]," * 90_000 + "0]}"]
        calls = [{"id": text[:9], "type": "function", "function": {"name": "f", "arguments": text}} for text in texts]
        messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        for number, message in (
            (1, "maximum context length"),  # parsed and rendered
            (2, "calls whose arguments have over 131072 lists, objects and keys"),
        ):
            called = {"role": "assistant", "tool_calls": calls[:number]}
            answer = await router.http.post(CHAT, json={"messages": [*messages, called], "max_tokens": 1})
            check(answer, 400, message, "messages")


async def test_another_model_is_not_found() -> None:
    async with running_router(ScriptedWorker()) as router:
        with pytest.raises(openai.NotFoundError) as caught:
            await router.openai.chat.completions.create(model="other", messages=HELLO)
        assert caught.value.code == "model_not_found"


async def test_no_worker_is_503() -> None:
    async with running_router() as router:
        answer = await router.http.post(CHAT, json={"messages": HELLO})
        check(answer, 503, "no decode worker is ready")
        assert answer.headers["retry-after"]
        check(await router.http.get("/ready"), 503, "no decode worker is ready")
        assert (await router.http.get("/health")).status_code == 200


async def test_too_many_requests_are_429() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, max_inflight=2, max_queue=0) as router:
        first = asyncio.create_task(router.http.post(CHAT, json={"messages": HELLO, "n": 2, "max_tokens": 3}))
        await until(lambda: bool(worker.commands))
        for stream in (False, True):
            answer = await router.http.post(CHAT, json={"messages": HELLO, "stream": stream})
            check(answer, 429, "try again in 1 s")
            assert answer.headers["retry-after"]
        # Nothing is done for a request that is not taken: its prompt is not even tokenised and found too long.
        check(await router.http.post(COMPLETIONS, json={"prompt": "a" * 6000}), 429, "try again in 1 s")
        worker.go_on.set()
        assert (await first).status_code == 200


async def test_a_request_over_a_hard_limit_is_400_and_not_429() -> None:
    async with running_router(ScriptedWorker(), max_inflight=3) as router:
        check(await router.http.post(CHAT, json={"messages": HELLO, "n": 4}), 400, "limit of 3 completions", "n")
        body = {"prompt": ["a", "b"], "n": 2}
        check(await router.http.post(COMPLETIONS, json=body), 400, "n is 2 for each of 2 prompts", "n")
        assert (await router.http.post(COMPLETIONS, json={**body, "n": 1})).status_code == 200


async def test_all_prompts_of_a_request_are_admitted_or_none() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, max_inflight=3, max_queue=0) as router:
        first = asyncio.create_task(router.http.post(COMPLETIONS, json={"prompt": ["a", "b"], "max_tokens": 3}))
        await until(lambda: len(worker.commands) == 2)
        check(await router.http.post(COMPLETIONS, json={"prompt": ["c", "d"]}), 429, "2 completions are in progress")
        assert len(worker.commands) == 2
        worker.go_on.set()
        assert (await first).status_code == 200


async def test_the_default_length_is_at_least_min_tokens() -> None:
    async with running_router(ScriptedWorker()) as router:
        answer = await router.http.post(COMPLETIONS, json={"prompt": "a", "min_tokens": 17})
        assert answer.json()["usage"]["completion_tokens"] == 17


@pytest.mark.parametrize(("code", "status"), [(3, 400), (8, 429), (13, 500)])
async def test_a_workers_refusal_has_its_status(code: int, status: int) -> None:
    worker = ScriptedWorker()
    worker.refusal = refusal(code, "the worker said no")
    async with running_router(worker) as router:
        for stream in (False, True):
            answer = await router.http.post(CHAT, json={"messages": HELLO, "stream": stream})
            check(answer, status, "the worker said no")


async def test_a_request_refused_by_a_full_worker_moves_to_another() -> None:
    full, free = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    full.refusal = refusal(8, "full")
    async with running_router(full, free) as router:
        answer = await router.http.post(CHAT, json={"messages": HELLO, "max_tokens": 2})
        assert answer.status_code == 200
        assert answer.headers["x-baton-decode"] == "decode-1"


async def broken_stream(router: RunningRouter) -> list[Any]:
    stream = await router.openai.chat.completions.create(model="", messages=HELLO, stream=True, max_tokens=9)
    return [chunk async for chunk in stream]


async def test_an_error_in_mid_stream_is_an_event() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, failover_attempts=0) as router:
        reading = asyncio.create_task(broken_stream(router))
        await until(lambda: bool(worker.commands))
        stopping = asyncio.create_task(worker.stop())
        with pytest.raises(openai.APIError, match="is lost"):
            await reading
        await stopping
