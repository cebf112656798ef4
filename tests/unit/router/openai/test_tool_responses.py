"""Responses with reasoning and tool calls through the real client, over real HTTP: streamed, whole and resumed."""

from typing import Any

import orjson
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.unit.router.rigs.running_router import RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker, scripted_turn

MODEL_NAME = "bundled_model"
CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "What time is it?"}]
END = 2  # <|im_end|>
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in ("clock", "weather")]
THOUGHT, SAID = "It is late, I think.", "Let me look.\n"
ARGUMENTS = ['{"zone": "Ö, <x> {\\"y\\"}"}', "{}"]
CALLS = "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    for name, arguments in zip(("clock", "weather"), ARGUMENTS, strict=True)
)
OUTPUT = f"<think>\n{THOUGHT}\n</think>\n\n{SAID}{CALLS}"


async def writing(worker: ScriptedWorker, router: RunningRouter, text: str) -> int:
    """Let the worker write a text, and return the number of its tokens, the end included."""
    tokens = [*(await router.http.post("/tokenize", json={"prompt": text})).json()["tokens"], END]
    header = (await router.http.post("/tokenize", json={"prompt": "<|im_start|>assistant\n"})).json()["tokens"]
    worker.script = scripted_turn(tokens, header)
    worker.end_token = END
    return len(tokens)


async def complete(router: RunningRouter, **options: Any) -> ChatCompletion:
    response: ChatCompletion = await router.openai.chat.completions.create(
        model=MODEL_NAME, messages=HELLO, **{"tools": TOOLS, **options}
    )
    return response


async def collect(router: RunningRouter, **options: Any) -> list[ChatCompletionChunk]:
    stream = await router.openai.chat.completions.create(
        model=MODEL_NAME, messages=HELLO, stream=True, **{"tools": TOOLS, **options}
    )
    return [chunk async for chunk in stream]


def joined(chunks: list[ChatCompletionChunk], name: str, index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(getattr(choice.delta, name, None) or "" for choice in choices)


async def test_a_whole_response() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        num_tokens = await writing(worker, router, OUTPUT)
        response = await complete(router)
        [choice] = response.choices
        message = choice.message
        assert message.content is not None
        assert message.content.strip() == SAID.strip()
        assert message.model_extra is not None
        assert message.model_extra["reasoning"] == message.model_extra["reasoning_content"]
        assert message.model_extra["reasoning"].strip() == THOUGHT
        assert message.tool_calls is not None
        assert [call.function.name for call in message.tool_calls] == ["clock", "weather"]
        assert [call.function.arguments for call in message.tool_calls] == ARGUMENTS
        assert all(call.id.startswith("call_") and call.type == "function" for call in message.tool_calls)
        assert len({call.id for call in message.tool_calls}) == 2
        assert (choice.finish_reason, choice.stop_reason) == ("tool_calls", None)  # type: ignore[attr-defined]  # vLLM's
        assert response.usage is not None
        assert response.usage.completion_tokens == num_tokens
        details = response.usage.completion_tokens_details
        assert details is not None
        assert details.reasoning_tokens is not None
        assert 0 < details.reasoning_tokens < num_tokens / 2


async def test_a_stream_has_the_same_parts() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, OUTPUT)
        options: dict[str, Any] = {"extra_headers": {"x-request-id": "mine"}, "seed": 5}
        whole = (await complete(router, **options)).choices[0].message
        chunks = await collect(router, **options)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert joined(chunks, "content") == whole.content
        assert whole.model_extra is not None
        assert joined(chunks, "reasoning") == joined(chunks, "reasoning_content") == whole.model_extra["reasoning"]
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        begins = [call for call in calls if call.id is not None]
        assert whole.tool_calls is not None
        assert [call.id for call in begins] == [call.id for call in whole.tool_calls]
        assert [(call.index, call.type, call.function and call.function.arguments) for call in begins] == [
            (0, "function", ""), (1, "function", ""),
        ]  # fmt: skip
        for index, arguments in enumerate(ARGUMENTS):
            texts = [call.function.arguments or "" for call in calls if call.index == index and call.function]
            assert "".join(texts) == arguments
        assert all(len(chunk.choices[0].delta.tool_calls or ()) <= 1 for chunk in chunks)
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "tool_calls"
        other = await complete(router, **options | {"seed": 6})
        assert other.choices[0].message.tool_calls is not None
        assert other.choices[0].message.tool_calls[0].id != whole.tool_calls[0].id


async def test_only_calls_have_no_content() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, CALLS)
        answer = (await router.http.post(CHAT, json={"messages": HELLO, "tools": TOOLS})).json()
        message = answer["choices"][0]["message"]
        assert message["content"] is None
        assert message["reasoning"] is message["reasoning_content"] is None
        assert len(message["tool_calls"]) == 2
        assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_reasoning_that_is_not_included_is_counted() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, OUTPUT)
        hidden: dict[str, Any] = {"extra_body": {"include_reasoning": False}}
        shown, response = await complete(router), await complete(router, **hidden)
        assert response.usage is not None
        assert shown.usage is not None
        assert response.usage.completion_tokens_details == shown.usage.completion_tokens_details
        assert response.choices[0].message.model_extra is not None
        assert response.choices[0].message.model_extra["reasoning"] is None
        assert response.choices[0].message.content == shown.choices[0].message.content
        chunks = await collect(router, **hidden)
        assert not joined(chunks, "reasoning")
        assert joined(chunks, "content") == shown.choices[0].message.content


async def test_calls_are_text_unless_tools_may_be_called() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, tool_call_parser="hermes") as router:
        await writing(worker, router, CALLS)
        for options in ({"tools": []}, {"tool_choice": "none"}):
            response = await complete(router, **options)
            assert response.choices[0].message.content == CALLS
            assert response.choices[0].finish_reason == "stop"
            assert response.usage is not None
            assert response.usage.completion_tokens_details is None
        completion = await router.openai.completions.create(model=MODEL_NAME, prompt="a", max_tokens=5)
        assert completion.choices[0].finish_reason == "length"


async def test_one_call_if_calls_are_not_parallel() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        num_tokens = await writing(worker, router, CALLS)
        response = await complete(router, parallel_tool_calls=False)
        message = response.choices[0].message
        assert message.tool_calls is not None
        assert [call.function.name for call in message.tool_calls] == ["clock"]
        assert response.choices[0].finish_reason == "tool_calls"
        assert response.usage is not None
        assert response.usage.completion_tokens < num_tokens


async def test_an_output_that_is_cut_off() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        num_tokens = await writing(worker, router, CALLS)
        response = await complete(router, max_tokens=num_tokens - 8)
        assert response.choices[0].finish_reason == "length"
        assert response.choices[0].message.tool_calls


async def test_logprobs_and_token_ids_are_those_of_all_tokens() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        num_tokens = await writing(worker, router, OUTPUT)
        options: dict[str, Any] = {"logprobs": True, "extra_body": {"return_token_ids": True}}
        response = await complete(router, **options)
        logprobs = response.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert len(logprobs.content) == num_tokens
        chunks = await collect(router, **options)
        streamed = [entry for chunk in chunks if (found := chunk.choices[0].logprobs) for entry in found.content or ()]
        assert streamed == logprobs.content
        extras = [chunk.choices[0].model_extra or {} for chunk in chunks]
        assert sum(len(extra.get("token_ids", ())) for extra in extras) == num_tokens


async def test_several_completions() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, OUTPUT)
        response = await complete(router, n=3)
        calls = [call.id for choice in response.choices for call in choice.message.tool_calls or ()]
        assert len(set(calls)) == 6
        chunks = await collect(router, n=3)
        for index in range(3):
            assert joined(chunks, "content", index) == response.choices[0].message.content


def events(text: str) -> list[tuple[str | None, Any]]:
    """Return the ids and the choices of a stream's events, without the last one."""
    found = []
    for event in text.removesuffix("data: [DONE]\n\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in event.splitlines())
        if "data" in lines:
            body = orjson.loads(lines["data"])
            body.get("usage", {}).pop("prompt_tokens_details", None)  # a resumed request finds its prompt in the cache
            found.append((lines.get("id"), body.get("choices") or body.get("usage")))
    return found


@pytest.mark.parametrize("text", [OUTPUT, CALLS])
async def test_a_resumed_stream_continues_with_the_same_events(text: str) -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, text)
        body = {
            "messages": HELLO, "tools": TOOLS, "stream": True, "stop": ["never"],
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        headers = {"x-request-id": "mine", "x-baton-resumable": "true"}
        expected = events((await router.http.post(CHAT, json=body, headers=headers)).text)
        assert (expected[-1][1]["completion_tokens_details"]["reasoning_tokens"] > 0) == (text is OUTPUT)
        for place, (event_id, _) in enumerate(expected):
            if event_id is None:
                continue
            resume = {**headers, "x-baton-resume": f"mine; tokens={event_id}"}
            response = await router.http.post(CHAT, json=body, headers=resume)
            assert response.status_code == 200, response.text
            assert events(response.text) == expected[place + 1 :], place


async def test_a_router_without_a_parser_refuses_tools() -> None:
    async with running_router(ScriptedWorker(), tool_call_parser="none") as router:
        for choice in ("auto", "required", None):
            body = {"messages": HELLO, "tools": TOOLS, "tool_choice": choice}
            error = (await router.http.post(CHAT, json=body)).json()["error"]
            assert (error["param"], error["code"]) == ("tools", 400)
            assert "--tool-call-parser" in error["message"]
