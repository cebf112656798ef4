"""The Responses API with the real `openai` client against the real server."""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import openai
import pytest
import pytest_asyncio
from pydantic import BaseModel, Field

from benchmarks.server import served
from tests.integration.membership.registry_router import registry_router, wait_ready_workers
from tests.integration.membership.test_registry_redis import start_workers
from tests.redis_server import redis_server

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "baton-bundled"
BUNDLED = Path(str(files("baton"))) / "bundled_model"


class Weather(BaseModel):
    """Get the weather of a city."""

    city: Annotated[str, Field(max_length=12)]
    unit: Literal["celsius", "fahrenheit"]


TOOLS: Any = [openai.pydantic_function_tool(Weather)]
FLAT: Any = [{"type": "function", **TOOLS[0]["function"]}]
OPTIONS: Any = {"model": MODEL, "input": "What is the weather in Oslo?", "max_output_tokens": 300}
FORCED: Any = {**OPTIONS, "tools": FLAT, "tool_choice": "required", "parallel_tool_calls": False}


@pytest_asyncio.fixture(loop_scope="session")
async def api(cluster_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{cluster_url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_a_response_is_that_of_the_chat_api(api: openai.AsyncOpenAI) -> None:
    options: Any = {"temperature": 0, "extra_body": {"seed": 1}}
    response = await api.responses.create(**{**OPTIONS, "max_output_tokens": 12}, **options)
    messages: Any = [{"role": "user", "content": OPTIONS["input"]}]
    chat = await api.chat.completions.create(model=MODEL, messages=messages, max_tokens=12, **options)
    assert response.output_text == chat.choices[0].message.content
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens


async def test_parsed_outputs_streamed_and_whole(api: openai.AsyncOpenAI) -> None:
    options: Any = {**OPTIONS, "text_format": Weather, "extra_body": {"seed": 4}}
    whole = await api.responses.parse(**options)
    assert isinstance(whole.output_parsed, Weather)
    async with api.responses.stream(**options) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_parsed == whole.output_parsed
    assert kinds.count("response.output_text.delta") > 1
    assert kinds[-1] == "response.completed"


async def test_a_required_call_streamed_and_whole(api: openai.AsyncOpenAI) -> None:
    options: Any = {**FORCED, "extra_body": {"seed": 4}}
    whole = await api.responses.parse(**options)
    [call] = whole.output
    assert call.type == "function_call"
    Weather.model_validate_json(call.arguments)
    async with api.responses.stream(**options) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.function_call_arguments.delta"]
        final = await stream.get_final_response()
    [streamed] = final.output
    assert streamed.type == "function_call"
    assert (streamed.name, streamed.arguments) == (call.name, call.arguments) == ("Weather", snapshots[-1])
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "7 degrees"}]
    then = await api.responses.create(
        model=MODEL, input=result, previous_response_id=whole.id, tools=FLAT, max_output_tokens=4
    )
    assert then.usage is not None
    assert then.usage.input_tokens > 20
    result[0]["call_id"] = "another"
    with pytest.raises(openai.BadRequestError) as caught:
        await api.responses.create(model=MODEL, input=result, previous_response_id=whole.id, tools=FLAT)
    assert caught.value.param == "input[0].call_id"


async def test_an_incomplete_response_and_its_deletion(api: openai.AsyncOpenAI) -> None:
    response = await api.responses.create(**{**OPTIONS, "max_output_tokens": 2})
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert await api.responses.retrieve(response.id) == response
    await api.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        await api.responses.retrieve(response.id)


REFUSED_SCHEMA = {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}
ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function", "name": "f", "strict": True, "parameters": ENDLESS}]}, "tools[0].parameters"),
    ({"text": {"format": {"type": "json_object"}}}, "text.format"),
    ({"text": REFUSED_SCHEMA, "tools": [], "tool_choice": "auto"}, "text.format.schema"),
    ({"max_output_tokens": 1_000_000}, "max_output_tokens"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
    ({"temperature": 3}, "temperature"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_requests_that_are_refused(api: openai.AsyncOpenAI, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await api.responses.create(**{**FORCED, **fields}, stream=stream)
        assert caught.value.param == param
        assert param in caught.value.message


THINKING = """
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n<think>\\n' -}}{%- endif -%}
"""


async def test_reasoning_is_an_item_and_events(tmp_path: Path) -> None:
    model = tmp_path / "thinking"
    shutil.copytree(BUNDLED, model)
    (model / "chat_template.jinja").write_text(THINKING)
    flags = ("--dtype=float32", "--reasoning-parser=deepseek_r1", "--colocated=1", "--num-threads=1")
    async with (
        served(str(model), *flags) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        options: Any = {**OPTIONS, "model": "thinking", "max_output_tokens": 12}
        options["extra_body"] = {"seed": 1, "min_tokens": 12}
        whole = await client.responses.create(**options)
        [item] = whole.output
        assert item.type == "reasoning"
        assert item.content
        assert whole.usage is not None
        assert whole.usage.output_tokens_details.reasoning_tokens == 12
        async with client.responses.stream(**options) as stream:
            deltas = [event.delta async for event in stream if event.type == "response.reasoning_text.delta"]
        assert "".join(deltas) == item.content[0].text


async def test_two_routers_share_stored_responses_in_redis(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(redis_server(tmp_path / "redis"))
        await start_workers(stack, server.url, tmp_path, "decode")
        routers = [await stack.enter_async_context(registry_router(server.url, BUNDLED, tmp_path)) for _ in range(2)]
        clients = [
            openai.AsyncOpenAI(base_url=f"{each.base_url}/v1", api_key="none", max_retries=0) for each in routers
        ]
        for router, client in zip(routers, clients, strict=True):
            await wait_ready_workers(router, "decode-0")
            stack.push_async_callback(client.close)
        previous, conversation = None, []
        for turn in range(4):
            client = clients[turn % 2]
            options: Any = {"model": BUNDLED.name, "max_output_tokens": 6, "temperature": 0}
            response = await client.responses.create(input=f"turn {turn}", previous_response_id=previous, **options)
            conversation.append({"role": "user", "content": f"turn {turn}"})
            expected = await client.responses.create(input=conversation, store=False, **options)
            assert expected.output_text == response.output_text
            assert (expected.usage and expected.usage.input_tokens) == (response.usage and response.usage.input_tokens)
            conversation.append({"role": "assistant", "content": response.output_text})
            previous = response.id
        assert previous is not None
        items = await clients[0].responses.input_items.list(previous, order="asc")
        assert len(items.data) == 7
        await server.kill()
        with pytest.raises(openai.InternalServerError) as caught:
            await clients[0].responses.create(input="a", previous_response_id=previous, **options)
        assert caught.value.status_code == 503
        assert (await clients[1].responses.create(input="a", **options)).output_text
