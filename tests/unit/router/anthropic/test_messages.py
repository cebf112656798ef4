"""Messages through Anthropic's client, over real HTTP with a scripted worker: whole, streamed, counted, and errors."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import orjson
import pytest

from baton.protos import common_pb2
from baton.protos.worker_pb2 import RequestDelta
from tests.unit.router.anthropic.conversion import HELLO, tool
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.openai.test_tool_responses import ARGUMENTS, END, PARSERS, SAID, THOUGHT
from tests.unit.router.openai.test_tool_responses import OUTPUT as THINKING_OUTPUT
from tests.unit.router.rigs.running_router import RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker, scripted_turn

MODEL = "bundled_model"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
TOOLS: Any = [tool("clock"), tool("weather")]
COUNTED: dict[str, Any] = {"messages": HELLO}
BODY: dict[str, Any] = {**COUNTED, "max_tokens": 2}


@asynccontextmanager
async def connected(router: RunningRouter, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Yield Anthropic's client, which ignores the machine's proxies."""
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False, verify=False, timeout=20)
    options = {"api_key": "none", **options}
    async with anthropic.AsyncAnthropic(base_url=router.url, max_retries=0, http_client=http, **options) as client:
        yield client


async def writing(worker: ScriptedWorker, router: RunningRouter, text: str) -> int:
    """Let the worker write a text after any prompt, and return the number of its tokens, the end included."""
    tokens = [*(await router.http.post("/tokenize", json={"prompt": text})).json()["tokens"], END]
    header = (await router.http.post("/tokenize", json={"prompt": "<|im_start|>assistant\n"})).json()["tokens"]
    worker.script = scripted_turn(tokens, header)
    worker.end_token = END
    return len(tokens)


def names(text: str) -> list[str]:
    """Return the names of a stream's events, without repetitions of one name in a row."""
    found = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    return [name for place, name in enumerate(found) if place == 0 or name != found[place - 1]]


def contents(message: anthropic.types.Message) -> list[dict[str, Any]]:
    """Return the content blocks with the fields that the server sent."""
    return [block.model_dump(exclude_none=True) for block in message.content]


async def test_a_whole_message_and_its_stream_have_the_same_content() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router, connected(router) as client:
        num_tokens = await writing(worker, router, THINKING_OUTPUT)
        options: dict[str, Any] = {"model": MODEL, "messages": HELLO, "max_tokens": 150, "tools": TOOLS}
        options |= {"extra_headers": {"x-request-id": "mine"}, "extra_body": {"seed": 5}}
        whole = await client.messages.create(**options)
        thinking, text, *calls = whole.content
        assert thinking.type == "thinking"
        assert thinking.thinking.strip() == THOUGHT
        assert thinking.signature
        assert text.type == "text"
        assert text.text.strip() == SAID.strip()
        assert [(call.type, call.name, call.input) for call in calls if call.type == "tool_use"] == [
            ("tool_use", name, orjson.loads(arguments))
            for name, arguments in zip(("clock", "weather"), ARGUMENTS, strict=True)
        ]
        assert (whole.id, whole.model, whole.role) == ("msg_mine", MODEL, "assistant")
        assert (whole.stop_reason, whole.stop_sequence) == ("tool_use", None)
        assert whole.usage.output_tokens == num_tokens
        assert whole.usage.output_tokens_details is not None
        assert 0 < whole.usage.output_tokens_details.thinking_tokens < num_tokens / 2
        async with client.messages.stream(**options) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_message()
        assert {"text", "thinking", "signature", "input_json", "message_stop"} <= kinds
        assert contents(final) == contents(whole)
        assert (final.stop_reason, final.id) == (whole.stop_reason, whole.id)
        assert final.usage.output_tokens == num_tokens
        assert final.usage.output_tokens_details == whole.usage.output_tokens_details
        assert stream.response.headers["request-id"] == whole._request_id == "mine"


async def test_the_events_of_a_stream() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, THINKING_OUTPUT)
        body = {**BODY, "max_tokens": 150, "tools": TOOLS, "stream": True}
        text = (await router.http.post(MESSAGES, json=body)).text
        block = ["content_block_start", "content_block_delta", "content_block_stop"]
        assert names(text) == ["message_start", "ping", *block * 4, "message_delta", "message_stop"]
        bodies = [orjson.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
        start, last = bodies[0]["message"], bodies[-2]
        assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
        assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
        shared = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        assert [start["usage"][name] for name in shared] == [last["usage"][name] for name in shared]
        deltas = [each["delta"]["type"] for each in bodies if each["type"] == "content_block_delta"]
        assert deltas.count("signature_delta") == 1
        disabled = {**body, "thinking": {"type": "disabled"}}
        assert "thinking_delta" not in (await router.http.post(MESSAGES, json=disabled)).text
        omitted = (
            await router.http.post(MESSAGES, json={**body, "thinking": {"type": "adaptive", "display": "omitted"}})
        ).text
        assert ("thinking_delta" in omitted, "signature_delta" in omitted) == (False, True)


async def test_cached_tokens_are_no_input_tokens_and_the_count_is_their_sum() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router, connected(router) as client:
        prompt: dict[str, Any] = {"model": MODEL, "messages": HELLO * 20, "system": "Be brief.", "tools": TOOLS}
        count = (await client.messages.count_tokens(**prompt)).input_tokens
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "\n".join(["hello"] * 20)}]
        functions = [
            {"type": "function", "function": {"name": each["name"], "parameters": each["input_schema"]}}
            for each in TOOLS
        ]
        tokens = (await router.http.post("/tokenize", json={"messages": chat, "tools": functions})).json()
        assert tokens["count"] == count
        usages = [(await client.messages.create(**prompt, max_tokens=2)).usage for _ in range(2)]
        for usage in usages:
            assert usage.cache_read_input_tokens is not None
            assert usage.input_tokens + usage.cache_read_input_tokens == count
            assert usage.cache_creation_input_tokens == 0
        async with client.messages.stream(**prompt, max_tokens=2) as stream:
            usage = (await stream.get_final_message()).usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count


async def test_why_a_message_stops() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router, connected(router) as client:
        await writing(worker, router, "one two three")
        cases: list[tuple[dict[str, Any], str, str | None]] = [
            ({"max_tokens": 100}, "end_turn", None),
            ({"max_tokens": 1}, "max_tokens", None),
            ({"max_tokens": 100, "stop_sequences": ["x", " two"]}, "stop_sequence", " two"),
        ]
        for options, reason, sequence in cases:
            whole = await client.messages.create(model=MODEL, messages=HELLO, **options)
            async with client.messages.stream(model=MODEL, messages=HELLO, **options) as stream:
                final = await stream.get_final_message()
            for message in (whole, final):
                assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
        [block] = final.content
        assert block.type == "text"
        assert block.text == "one"
        nothing = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=0)
        assert (nothing.content, nothing.stop_reason, nothing.usage.output_tokens) == ([], "max_tokens", 0)


async def test_what_the_model_wrote_wrong_is_under_a_key() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router, connected(router) as client:
        await writing(worker, router, '<tool_call>\n{"name": "clock", "arguments": {"zone": nowhere}}\n</tool_call>')
        message = await client.messages.create(model=MODEL, messages=HELLO, max_tokens=90, tools=TOOLS)
        [call] = message.content
        assert call.type == "tool_use"
        assert call.input == {"INVALID_JSON": '{"zone": nowhere}'}


def check(answer: httpx.Response, status: int, kind: str, message: str) -> None:
    """Check an error's status, type and message, and its id."""
    body = answer.json()
    assert answer.status_code == status, body
    assert set(body) == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert message in body["error"]["message"]
    assert answer.headers["request-id"] == answer.headers["x-request-id"] == body["request_id"]


async def test_errors_of_requests() -> None:
    invalid = "invalid_request_error"
    async with running_router(ScriptedWorker(), max_body_bytes=20_000, max_stop=2, tool_call_parser="none") as router:
        http, json = router.http, {"content-type": "application/json"}
        cases: list[tuple[dict[str, Any], int, str, str]] = [
            ({}, 400, invalid, "messages: Field required"),
            ({**BODY, "model": "claude"}, 404, "not_found_error", "`claude` does not exist"),
            ({**BODY, "tools": TOOLS}, 400, invalid, 'set tool_choice to {"type": "none"}'),
            ({**BODY, "max_tokens": 5000}, 400, invalid, "`max_tokens` exceed context limit: "),
            ({**BODY, "messages": HELLO * 300}, 400, invalid, "prompt is too long: "),
            ({**BODY, "stop_sequences": ["a"] * 3}, 400, invalid, "stop_sequences has 3 strings"),
            ({**BODY, "metadata": {"user_id": "a" * 1025}}, 400, invalid, "metadata.user_id"),
            ({**BODY, "min_tokens": 9}, 400, invalid, "min_tokens is 9"),
            ({**BODY, "chat_template_kwargs": {"tokenize": 1}}, 400, invalid, "must not set tokenize"),
            ({**BODY, "thinking": {"type": "enabled"}}, 400, invalid, "thinking is not supported"),
            ({**BODY, "thread": {"type": "create"}}, 400, invalid, "thread: this server keeps no threads"),
        ]
        for body, status, kind, message in cases:
            check(await http.post(MESSAGES, json=body), status, kind, message)
        for path in (MESSAGES, COUNT, f"{MESSAGES}?beta=true"):
            check(await http.post(path, content=b"{", headers=json), 400, invalid, "no valid JSON")
            large = await http.post(path, content=b" " * 20_001, headers=json)
            check(large, 413, "request_too_large", "limit of 20000")
            check(await http.post(path, content=b"{}"), 415, invalid, "content-type: application/json")
            soon = await http.post(path, json=BODY if path != COUNT else COUNTED, headers={"x-baton-timeout": "soon"})
            check(soon, 400, invalid, "x-baton-timeout")
            resumable = {"x-baton-resumable": "true", "x-request-id": "a"}
            check(await http.post(path, json=BODY, headers=resumable), 400, invalid, "cannot be resumed")
        check(await http.post(COUNT, json={"messages": HELLO, "model": "a"}), 404, "not_found_error", "`a`")
        check(await http.post(COUNT, json={"messages": [{"role": "user", "content": "a" * 9000}]}), 400, invalid, "9")


async def test_a_schema_that_cannot_be_enforced_is_named() -> None:
    async with running_router(ScriptedWorker(), tool_call_parser="hermes") as router:
        wrong = {"type": "object", "not": {}}
        bodies: list[tuple[dict[str, Any], str]] = [
            ({"output_config": {"format": {"type": "json_schema", "schema": wrong}}}, "output_config.format.schema: "),
            ({"tools": [tool(), {"name": "g", "input_schema": wrong}], "tool_choice": {"type": "any"}},
             "tools[1].input_schema: "),
            ({"tools": [tool()], "tool_choice": {"type": "any"},
              "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
             "output_config.format.schema must not be given if tool_choice requires a call"),
        ]  # fmt: skip
        for more, message in bodies:
            check(await router.http.post(MESSAGES, json={**BODY, **more}), 400, "invalid_request_error", message)


async def test_errors_in_a_stream_and_of_deadlines() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router, connected(router) as client:
        worker.go_on.clear()
        late = {"x-baton-timeout": "0.2"}
        check(await router.http.post(MESSAGES, json=BODY, headers=late), 504, "timeout_error", "")
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with client.messages.stream(model=MODEL, extra_headers=late, **BODY) as stream:
                await stream.get_final_message()
        assert caught.value.type == "timeout_error"
        worker.go_on.set()
        error = {"code": 8, "message": "full"}
        worker.refusal = RequestDelta(finish_reason=common_pb2.FINISH_REASON_ERROR, error=error)  # type: ignore[arg-type]
        answer = await router.http.post(MESSAGES, json=BODY)
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert answer.headers["retry-after"]
    async with running_router() as router:
        check(await router.http.post(MESSAGES, json=BODY), 503, "overloaded_error", "")


async def test_a_body_that_does_not_arrive_in_time() -> None:
    async with running_router(ScriptedWorker(), body_timeout_s=0.1) as router, asyncio.timeout(20):
        host, _, port = router.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = "host: a\r\ncontent-type: application/json\r\ncontent-length: 16000000\r\n\r\n"
        writer.write(f"POST {MESSAGES} HTTP/1.1\r\n{head}".encode())
        await asyncio.sleep(0.3)
        writer.write(b" ")
        response = await reader.read()
        writer.close()
        assert response.startswith(b"HTTP/1.1 408 ")
        assert orjson.loads(response.rpartition(b"\r\n\r\n")[2])["error"]["type"] == "timeout_error"


@pytest.fixture
def keys(tmp_path: Path) -> TestKeys:
    """A file of keys."""
    return TestKeys(tmp_path)


async def test_both_headers_with_a_key(keys: TestKeys) -> None:
    key = keys.add("a", requests_per_minute=50)
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        for headers in ({}, {"x-api-key": "sk-other"}, {"x-api-key": ""}, {"authorization": f"Basic {key}"}):
            refused = await router.http.post(MESSAGES, json=BODY, headers=headers)
            check(refused, 401, "authentication_error", "API key")
            assert "sk-" not in refused.text
        basic = {"authorization": "Basic x", "x-api-key": key}
        for headers in ({"x-api-key": key}, bearer(key), basic):
            for path in (MESSAGES, "/v1/chat/completions"):
                answer = await router.http.post(path, json=BODY, headers=headers)
                assert answer.status_code == 200
                assert answer.headers["x-ratelimit-limit-requests"] == "50"
            assert (await router.http.get("/v1/models", headers=headers)).status_code == 200
        async with connected(router, api_key=key) as client:
            versions = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
            assert (await client.messages.create(model=MODEL, extra_headers=versions, **BODY)).content
            assert (await client.beta.messages.create(model=MODEL, betas=["a"], **BODY)).content
        async with connected(router, api_key=None, auth_token=key) as client:
            assert (await client.messages.count_tokens(model=MODEL, messages=HELLO)).input_tokens
        async with connected(router, api_key="sk-other") as client:
            with pytest.raises(anthropic.AuthenticationError) as caught:
                await client.messages.create(model=MODEL, **BODY)
            assert caught.value.type == "authentication_error"
            assert caught.value.request_id
