"""Messages with the real `anthropic` client against the real server."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import anthropic
import pytest
import pytest_asyncio
from anthropic.types import Message
from pydantic import BaseModel, Field

from benchmarks.server import served
from tests.integration.clients.test_openai_tools import THINKING

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "baton-bundled"
QUESTION: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
BUNDLED = Path(str(files("baton"))) / "bundled_model"


class Weather(BaseModel):
    """Get the weather of a city."""

    city: Annotated[str, Field(max_length=12)]
    unit: Literal["celsius", "fahrenheit"]


class Clock(BaseModel):
    """Get the time."""

    offset: Annotated[int, Field(ge=-12, le=14)]


TYPES: dict[str, type[BaseModel]] = {"Weather": Weather, "Clock": Clock}
TOOLS: Any = [
    {"name": name, "description": kind.__doc__, "input_schema": kind.model_json_schema()}
    for name, kind in TYPES.items()
]
FORCED: Any = {"model": MODEL, "messages": QUESTION, "tools": TOOLS, "max_tokens": 600}
ONE_OF_THEM: Any = {"type": "any", "disable_parallel_tool_use": True}
CLOCK: Any = {"type": "tool", "name": "Clock", "disable_parallel_tool_use": True}


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    http = anthropic.DefaultAsyncHttpxClient(trust_env=False, timeout=120)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, http_client=http) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def api(cluster_url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with connected(cluster_url) as client:
        yield client


async def streamed(api: anthropic.AsyncAnthropic, **options: Any) -> tuple[list[str], Message]:
    """Return the types of a stream's events, and the message that the client accumulates."""
    async with api.messages.stream(**options) as stream:
        kinds = [event.type async for event in stream]
        return kinds, await stream.get_final_message()


def contents(message: Message) -> list[dict[str, Any]]:
    return [block.model_dump(exclude_none=True) for block in message.content]


async def test_a_message_and_its_stream(api: anthropic.AsyncAnthropic) -> None:
    prompt: Any = {"model": MODEL, "system": "Be brief.", "messages": QUESTION}
    options: Any = {**prompt, "max_tokens": 16}
    count = await api.messages.count_tokens(**prompt)
    whole = await api.messages.create(**options, extra_body={"temperature": 0})
    kinds, final = await streamed(api, **options, extra_body={"temperature": 0})
    assert contents(final) == contents(whole)
    assert [block.type for block in whole.content] == ["text"]
    assert kinds.count("text") > 1
    for message in (whole, final):
        usage = message.usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == count.input_tokens
        assert (usage.output_tokens, message.stop_reason) == (16, "max_tokens")
    continued = [*QUESTION, {"role": "assistant", "content": "The weather is"}]
    assert (await api.messages.create(model=MODEL, messages=continued, max_tokens=4)).content


async def test_cached_tokens_are_no_input_tokens(api: anthropic.AsyncAnthropic) -> None:
    prompt: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Some words. " * 40}]}
    count = await api.messages.count_tokens(**prompt)
    async with asyncio.timeout(60):  # the router learns of cached blocks a moment after they are computed
        while True:
            usage = (await api.messages.create(**prompt, max_tokens=2)).usage
            assert usage.cache_read_input_tokens is not None
            assert usage.input_tokens + usage.cache_read_input_tokens == count.input_tokens
            if usage.cache_read_input_tokens:
                break
    _, final = await streamed(api, **prompt, max_tokens=2)
    assert final.usage.cache_read_input_tokens
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == count.input_tokens


@pytest.mark.parametrize("choice", [ONE_OF_THEM, CLOCK])
async def test_a_required_call_whole_and_streamed(api: anthropic.AsyncAnthropic, choice: Any) -> None:
    options: Any = {**FORCED, "tool_choice": choice, "extra_body": {"seed": 3, "temperature": 1}}
    options["extra_headers"] = {"x-request-id": "calls"}
    whole = await api.messages.create(**options)
    kinds, final = await streamed(api, **options)
    [call] = whole.content
    assert call.type == "tool_use"
    assert (whole.stop_reason, final.stop_reason) == ("tool_use", "tool_use")
    TYPES[call.name].model_validate(call.input)
    if choice is CLOCK:
        assert call.name == "Clock"
    assert contents(final) == contents(whole)
    assert kinds.count("input_json") > 1
    assert kinds.count("content_block_stop") == 1


async def test_a_loop_with_results(api: anthropic.AsyncAnthropic) -> None:
    first = await api.messages.create(**FORCED, tool_choice=ONE_OF_THEM)
    [call] = first.content
    assert call.type == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "7 degrees"}]}
    messages: Any = [
        *QUESTION,
        {"role": first.role, "content": first.content},
        {"role": "user", "content": [result, {"type": "text", "text": "In one word?"}]},
    ]
    prompt: Any = {"model": MODEL, "messages": messages, "tools": TOOLS}
    second = await api.messages.create(**prompt, max_tokens=8)
    usage = second.usage
    count = await api.messages.count_tokens(**prompt)
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0) > 20
    result["tool_use_id"] = "another"
    with pytest.raises(
        anthropic.BadRequestError, match=r"messages\[2\]\.content\[0\]\.tool_use_id: no earlier"
    ) as caught:
        await api.messages.create(**prompt, max_tokens=8)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


async def test_a_tool_runner_with_its_defaults_goes_on_without_a_thread(api: anthropic.AsyncAnthropic) -> None:
    calls: list[int] = []

    @anthropic.beta_async_tool(name="Clock")
    async def clock(offset: Annotated[int, Field(ge=-12, le=14)]) -> str:
        """Get the time."""
        calls.append(offset)
        return '{"time": "12:00"}'

    options: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 600, "tool_choice": CLOCK}
    runner = api.beta.messages.tool_runner(**options, tools=[clock], max_iterations=2)
    replies = [reply.stop_reason async for reply in runner]
    assert replies == ["tool_use", "tool_use"]
    assert len(calls) == 2


class Answer(BaseModel):
    """The client omits the bounds of numbers and texts from schemas, so it has none of them."""

    unit: Literal["celsius", "fahrenheit"]
    known: bool


async def test_an_output_that_matches_a_schema(api: anthropic.AsyncAnthropic) -> None:
    options: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 300, "output_format": Answer}
    message = await api.messages.parse(**options)
    assert isinstance(message.parsed_output, Answer)
    async with api.messages.stream(**options) as stream:
        assert isinstance((await stream.get_final_message()).parsed_output, Answer)


ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


async def test_schemas_that_cannot_be_enforced_are_named(api: anthropic.AsyncAnthropic) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tools": [*TOOLS, {"name": "f", "strict": True, "input_schema": ENDLESS}]}, r"tools\[2\]\.input_schema: "),
        ({"output_config": {"format": {"type": "json_schema", "schema": ENDLESS}}}, r"output_config\.format\.schema"),
    ]
    for fields, message in cases:
        with pytest.raises(anthropic.BadRequestError, match=message):
            await api.messages.create(**{**FORCED, **fields})
    with pytest.raises(anthropic.NotFoundError):
        await api.messages.create(**{**FORCED, "model": "claude"})


@pytest.mark.slow
async def test_thinking_of_a_template_that_begins_it(tmp_path: Path) -> None:
    model = tmp_path / "thinking"
    shutil.copytree(BUNDLED, model)
    (model / "chat_template.jinja").write_text(THINKING)
    flags = (
        "--dtype=float32",
        "--reasoning-parser=deepseek_r1",
        "--tool-call-parser=hermes",
        "--colocated=1",
        "--num-threads=1",
    )
    async with served(str(model), *flags) as url, connected(url) as client:
        options: Any = {"model": "thinking", "messages": QUESTION, "max_tokens": 12}
        options["extra_body"] = {"seed": 1, "ignore_eos": True}
        for config in ({"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}, anthropic.omit):
            whole = await client.messages.create(**options, thinking=config)
            kinds, final = await streamed(client, **options, thinking=config)
            [block] = whole.content
            assert block.type == "thinking"
            assert block.thinking
            assert block.signature
            assert contents(final) == contents(whole)
            assert {"thinking", "signature"} <= set(kinds)
            assert whole.usage.output_tokens_details == final.usage.output_tokens_details
            assert whole.usage.output_tokens_details is not None
            assert whole.usage.output_tokens_details.thinking_tokens == 12
        omitted: Any = {"type": "adaptive", "display": "omitted"}
        kinds, final = await streamed(client, **options, thinking=omitted)
        assert "thinking" not in kinds
        assert contents(final) == [{"type": "thinking", "thinking": "", "signature": block.signature}]
        _, final = await streamed(client, **options, thinking={"type": "disabled"})
        assert [each.type for each in final.content] == ["text"]
        messages: Any = [*QUESTION, {"role": "assistant", "content": [*whole.content, *final.content]}, *QUESTION]
        again = await client.messages.create(**{**options, "messages": messages})
        assert again.content
