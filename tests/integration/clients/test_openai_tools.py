"""Tools and reasoning with the real `openai` client against the real server."""

import json
import shutil
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field
from tokenizers import Tokenizer

from benchmarks.server import served

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "baton-bundled"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Oslo?"}]
BUNDLED = Path(str(files("baton"))) / "bundled_model"


class Weather(BaseModel):
    """Get the weather of a city."""

    city: Annotated[str, Field(max_length=12)]
    unit: Literal["celsius", "fahrenheit"]


class Clock(BaseModel):
    """Get the time."""

    offset: Annotated[int, Field(ge=-12, le=14)]


TOOLS: Any = [openai.pydantic_function_tool(each) for each in (Weather, Clock)]
TYPES = {"Weather": Weather, "Clock": Clock}
FORCED: Any = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "max_tokens": 600}


@pytest_asyncio.fixture(loop_scope="session")
async def api(cluster_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{cluster_url}/v1", api_key="none", max_retries=0) as client:
        yield client


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


async def test_the_model_calls_a_tool_and_answers_with_its_result(api: openai.AsyncOpenAI) -> None:
    messages: list[Any] = list(QUESTION)
    options: Any = {"model": MODEL, "tools": [WEATHER], "temperature": 0, "max_tokens": 100}
    first = await api.chat.completions.create(messages=messages, **options)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content is None
    [call] = message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo"})
    async with api.chat.completions.stream(messages=messages, **options) as stream:
        [streamed] = (await stream.get_final_completion()).choices[0].message.tool_calls or []
    assert (streamed.function.name, streamed.function.arguments) == ("get_weather", call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"temperature": 21, "sky": "sunny"})}
    second = await api.chat.completions.create(messages=[*messages, message.model_dump(), result], **options)
    answer = second.choices[0].message
    assert answer.tool_calls is None
    assert "21 degrees" in (answer.content or "")


async def test_the_model_fills_a_schema(api: openai.AsyncOpenAI) -> None:
    class Person(BaseModel):
        name: str
        age: int

    completion = await api.chat.completions.parse(
        model=MODEL,
        messages=[{"role": "user", "content": "Extract name and age as JSON: Anna is 42 years old."}],
        response_format=Person,
        temperature=0,
        max_tokens=60,
    )
    assert completion.choices[0].message.parsed == Person(name="Anna", age=42)


async def test_required_calls_are_always_made(api: openai.AsyncOpenAI) -> None:
    for seed in range(4):
        completion = await api.chat.completions.parse(
            **FORCED, tool_choice="required", parallel_tool_calls=False, seed=seed, temperature=1
        )
        [choice] = completion.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content is None
        assert choice.message.tool_calls is not None
        [call] = choice.message.tool_calls
        assert isinstance(call.function.parsed_arguments, TYPES[call.function.name])


async def test_a_named_function_is_called(api: openai.AsyncOpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "Clock"}}
    allowed: Any = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "Clock"}}]},
    }
    for choice in (named, allowed):
        completion = await api.chat.completions.parse(**FORCED, tool_choice=choice, parallel_tool_calls=False)
        [call] = completion.choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Clock)


async def test_a_stream_has_the_same_calls(api: openai.AsyncOpenAI) -> None:
    options: Any = {**FORCED, "tool_choice": "required", "parallel_tool_calls": False, "seed": 3}
    headers = {"x-request-id": "calls"}
    whole = await api.chat.completions.parse(**options, extra_headers=headers)
    async with api.chat.completions.stream(**options, extra_headers=headers) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    [streamed], [call] = final.choices[0].message.tool_calls or [], whole.choices[0].message.tool_calls or []
    assert (streamed.id, streamed.function) == (call.id, call.function)
    assert final.choices[0].finish_reason == "tool_calls"
    assert kinds.count("tool_calls.function.arguments.done") == 1
    assert kinds.count("tool_calls.function.arguments.delta") > 1


async def test_a_conversation_with_results(api: openai.AsyncOpenAI) -> None:
    options: Any = {**FORCED, "tool_choice": "required", "parallel_tool_calls": False}
    first = (await api.chat.completions.create(**options)).choices[0].message
    [call] = first.tool_calls or []
    messages: list[Any] = [
        *QUESTION,
        first.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"},
    ]
    second = await api.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=8)
    assert second.choices[0].message.tool_calls is None
    assert second.usage is not None
    assert second.usage.prompt_tokens > 20
    messages[2]["tool_call_id"] = "another"
    with pytest.raises(openai.BadRequestError) as caught:
        await api.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS, max_tokens=8)
    assert caught.value.param == "messages[2].tool_call_id"


async def test_a_response_format_with_tools_allows_content_or_calls(api: openai.AsyncOpenAI) -> None:
    class Answer(BaseModel):
        name: str
        age: int

    async def completed(question: str, **more: Any) -> Any:
        messages: Any = [{"role": "user", "content": question}]
        strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
        options: Any = {**FORCED, "messages": messages, "tools": [strict], "temperature": 0}
        options |= {"response_format": Answer, "parallel_tool_calls": False, **more}
        return (await api.chat.completions.parse(**options)).choices[0].message

    called = await completed("What is the weather in Oslo?")
    assert called.parsed is None
    assert called.tool_calls
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    biases = {str(tokenizer.token_to_id(text)): -100 for text in ("<tool_call>", "<")}  # it would rather call
    answered = await completed("Extract name and age as JSON: Anna is 42 years old.", logit_bias=biases)
    assert answered.parsed == Answer(name="Anna", age=42)
    assert not answered.tool_calls


def strict_tool(parameters: Any) -> Any:
    return {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [strict_tool({"not": {}})]}, "tools[0].function.parameters"),
    ({"tools": [*TOOLS, strict_tool(ENDLESS)]}, "tools[2].function.parameters"),
    ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
    ({"tool_choice": "required", "extra_body": {"regex": "a"}}, "regex"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_calls_that_cannot_be_enforced(api: openai.AsyncOpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await api.chat.completions.create(**{**FORCED, **fields})
    assert caught.value.param == param


THINKING = """
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\\n\\n</think>\\n\\n' -}}
{%- else -%}{{- '<think>\\n' -}}{%- endif -%}{%- endif -%}
"""


@pytest.mark.slow
async def test_reasoning_of_a_template_that_begins_it(tmp_path: Path) -> None:
    model = tmp_path / "thinking"
    shutil.copytree(BUNDLED, model)
    (model / "chat_template.jinja").write_text(THINKING)
    flags = ("--dtype=float32", "--reasoning-parser=deepseek_r1", "--tool-call-parser=hermes", "--colocated=1")
    async with (
        served(str(model), *flags) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        options: Any = {"model": "thinking", "messages": QUESTION, "max_tokens": 12, "seed": 1}

        async def usage_and_message(**more: Any) -> tuple[Any, Any]:
            body = {"ignore_eos": True, **more.pop("extra_body", {})}
            completion = await client.chat.completions.create(**options, **more, extra_body=body)
            message: Any = completion.choices[0].message
            return completion.usage, message

        usage, message = await usage_and_message()
        assert message.content is None
        assert message.reasoning == message.reasoning_content
        assert message.reasoning
        assert usage.completion_tokens_details.reasoning_tokens == usage.completion_tokens == 12
        kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
        for off in ({"extra_body": kwargs}, {"reasoning_effort": "none"}):
            usage, message = await usage_and_message(**off)
            assert message.content
            assert message.reasoning is None
            assert usage.completion_tokens_details.reasoning_tokens == 0
        choice = {"type": "function", "function": {"name": "Clock"}}
        named = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
        answer = {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": Clock.model_json_schema()},
            }
        }
        for more in (named, answer):
            completion: Any = await client.chat.completions.create(
                **{**options, "max_tokens": 60}, **more, extra_body=kwargs
            )
            message = completion.choices[0].message
            [text] = [call.function.arguments for call in message.tool_calls or ()] or [message.content]
            Clock.model_validate(json.loads(text))
