"""Structured output with the real `openai` client against the real server."""

import json
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import httpx
import openai
import pytest
import pytest_asyncio
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field

from tests.integration.workers_view import wait_idle

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "baton-bundled"
QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What does json.dumps do?"}]
EMPTY = {
    "type": "object",
    "properties": {"a": {}},
    "additionalProperties": False,
    "minProperties": 2,
}  # nothing matches


class Step(BaseModel):
    """A part of an answer."""

    number: Annotated[int, Field(ge=1, le=99)]
    text: Annotated[str, Field(max_length=12)]


class Answer(BaseModel):
    """An answer; its fields have every kind of type."""

    module: Literal["json", "textwrap"]
    is_known: bool
    steps: Annotated[list[Step], Field(min_length=1, max_length=2)]
    note: Annotated[str, Field(max_length=8)] | None
    score: Annotated[int, Field(ge=-10, le=10)]  # a float may have any number of digits


@pytest_asyncio.fixture(loop_scope="session")
async def api(cluster_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{cluster_url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_a_pydantic_model_is_parsed(api: openai.AsyncOpenAI) -> None:
    for seed in range(2):
        completion = await api.chat.completions.parse(
            model=MODEL, messages=QUESTION, response_format=Answer, seed=seed, max_tokens=1500
        )
        [choice] = completion.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Answer)


async def test_a_stream_has_the_same_text(api: openai.AsyncOpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "seed": 3, "max_tokens": 1500}
    whole = await api.chat.completions.parse(**options, response_format=Answer)
    async with api.chat.completions.stream(**options, response_format=Answer) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == whole.choices[0].message.parsed
    assert final.choices[0].message.content == whole.choices[0].message.content


async def test_an_output_that_is_cut_off_says_so(api: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        await api.chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Answer, max_tokens=5)


@pytest.mark.slow
async def test_a_json_object(api: openai.AsyncOpenAI) -> None:
    num_complete = 0
    for seed in range(4):
        completion = await api.chat.completions.create(
            model=MODEL, messages=QUESTION, response_format={"type": "json_object"}, seed=seed, max_tokens=300
        )
        [choice] = completion.choices
        assert choice.message.content is not None
        assert choice.message.content.startswith("{")
        if choice.finish_reason == "stop":
            num_complete += 1
            assert isinstance(json.loads(choice.message.content), dict)
    assert num_complete > 0


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [
        ({"structured_outputs": {"regex": "[a-c]{3}[0-9]"}}, "[a-c]{3}[0-9]"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
        ({"structured_outputs": {"json": {"type": "integer", "minimum": 10, "maximum": 99}}}, "[1-9][0-9]"),
        ({"structured_outputs": {"grammar": 'root ::= "(" root ")" | "x"'}}, r"\(*x\)*"),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    "format": {
                        "type": "tag",
                        "begin": "<a>",
                        "content": {"type": "regex", "pattern": "[0-9]{3}"},
                        "end": "</a>",
                    },
                }
            },
            "<a>[0-9]{3}</a>",
        ),
        ({"guided_choice": ["left", "right"]}, "left|right"),
        ({"guided_regex": "[0-9]{4}"}, "[0-9]{4}"),
        ({"regex": "[0-9]{4}"}, "[0-9]{4}"),
        ({"ebnf": 'root ::= "a" | "b"'}, "a|b"),
        ({"json_schema": '{"enum": ["a", "b"]}'}, '"a"|"b"'),
    ],
)
async def test_constraints_of_vllm_and_sglang(
    api: openai.AsyncOpenAI, constraint: dict[str, Any], pattern: str
) -> None:
    chat = await api.chat.completions.create(
        model=MODEL, messages=QUESTION, extra_body=constraint, max_tokens=60, temperature=0.5
    )
    assert re.fullmatch(pattern, chat.choices[0].message.content or "")
    completion = await api.completions.create(
        model=MODEL, prompt="The answer is ", extra_body=constraint, max_tokens=60, temperature=0.5
    )
    assert re.fullmatch(pattern, completion.choices[0].text)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_grammar_that_cannot_be_compiled_is_a_bad_request(
    api: openai.AsyncOpenAI, cluster_url: str, stream: bool
) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"structured_outputs": {"grammar": "root ::= a"}}, "structured_outputs.grammar", "line 1, column 10"),
        ({"guided_regex": "(a"}, "guided_regex", "position 3"),
        ({"regex": "(word"}, "regex", "The parenthesis is not closed"),
        ({"guided_json": EMPTY}, "guided_json", "minProperties is greater than the number of properties"),
        ({"guided_grammar": 'root ::= a\na ::= a "x"'}, "guided_grammar", "it matches no text"),
        ({"response_format": {"type": "structural_tag", "format": {"type": "x"}}}, "response_format", "recognized: x"),
    ]  # fmt: skip
    for constraint, param, message in cases:
        with pytest.raises(openai.BadRequestError) as caught:
            await api.chat.completions.create(  # type: ignore[call-overload]  # the overloads want a literal `stream`
                model=MODEL, messages=QUESTION, extra_body=constraint, max_tokens=5, stream=stream
            )
        assert caught.value.param == param
        assert message in str(caught.value)
        assert caught.value.type == "invalid_request_error"
    await wait_idle(cluster_url)


async def test_a_large_schema_does_not_stop_other_requests(api: openai.AsyncOpenAI, cluster_url: str) -> None:
    properties = {f"property {number}": {"type": "string"} for number in range(400)}
    async with httpx.AsyncClient(base_url=cluster_url, timeout=120, trust_env=False) as client:
        body = {"prompt": "a", "max_tokens": 30, "guided_json": {"type": "object", "properties": properties}}
        large = client.post("/v1/completions", json=body)
        plain = await api.completions.create(model=MODEL, prompt="a", max_tokens=5)
        assert plain.usage is not None
        assert (await large).status_code in (200, 400)
