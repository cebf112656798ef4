"""Every format of calls, from the chat template to the client: enforced by the grammar, parsed and streamed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from baton.router.parsing.formats import TOOL_FORMAT_NAMES
from tests.integration.worker_process import worker_process
from tests.marked_checkpoints import BUNDLED, GENERATION_PROMPT, marked_checkpoint
from tests.marks import slow_except
from tests.unit.router.rigs.running_router import running_router

# Texts by which a router finds a format in a chat template.
MARKS = {
    "hermes": "<tool_call>",
    "llama3_json": "<|python_tag|>",
    "llama4_json": "<|python_start|>",
    "pythonic": "[func_name1(",
    "llama4_pythonic": "[func_name1( <|header_start|>",
    "mistral": "[TOOL_CALLS]",
    "deepseek_v3": "<｜tool▁calls▁begin｜> ```json",
    "deepseek_v31": "<｜tool▁calls▁begin｜>",
    "deepseek_v32": "｜DSML｜",
    "deepseek_v4": "｜DSML｜ tool_calls>",
    "qwen3_coder": "<function= <parameter= <tool_call>",
    "glm45": "<arg_key> <arg_value>",
    "minimax_m2": "<minimax:tool_call>",
    "openai": "<|channel|> <|message|>",
    "kimi_k2": "<|tool_calls_section_begin|>",
}
USUAL = ("hermes", "pythonic", "qwen3_coder")  # a style each
SAME_FORMATS = {"qwen3_xml": "qwen3_coder", "glm47": "glm45"}  # other names, which templates do not show
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[a-z]{1,8}$"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "hourly": {"type": "boolean"},
        "near": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
    },
    "required": ["city", "unit", "days", "hourly", "near"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("now", "later")]


def test_every_format_is_here() -> None:
    assert {*MARKS, *SAME_FORMATS} == set(TOOL_FORMAT_NAMES)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def worker_address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with worker_process("both", BUNDLED, tmp_path_factory.mktemp("worker"), "--dtype=float32") as worker:
        yield worker.address


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", slow_except(MARKS, USUAL))
async def test_a_required_call(name: str, worker_address: str, tmp_path: Path) -> None:
    prompt = "<|start|>assistant" if name == "openai" else GENERATION_PROMPT
    model = marked_checkpoint(tmp_path / "model", MARKS[name], generation_prompt=prompt)
    # The bundled model never ends a reasoning: no reasoning is expected, and Harmony's is made improbable.
    [channel, *_] = Tokenizer.from_file(str(BUNDLED / "tokenizer.json")).encode("commentary").ids
    options: Any = {
        "model": "model", "messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "tools": TOOLS,
        "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 500, "temperature": 1, "seed": 3,
        "extra_headers": {"x-request-id": "call"}, "logit_bias": {str(channel): 14} if name == "openai" else {},
    }  # fmt: skip
    async with running_router(
        workers=(worker_address,), model=str(model), served_model_name="model", reasoning_parser="none"
    ) as router:
        whole: Any = (await router.openai.chat.completions.create(**options)).choices[0]
        async with router.openai.chat.completions.stream(**options) as stream:
            num_parts = len([event async for event in stream if event.type == "tool_calls.function.arguments.delta"])
            streamed: Any = (await stream.get_final_completion()).choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls", choice
        assert not choice.message.content
    [call], [again] = whole.message.tool_calls, streamed.message.tool_calls
    assert (call.id, call.function.name, call.function.arguments) == (
        again.id, again.function.name, again.function.arguments,
    )  # fmt: skip
    assert call.function.name in ("now", "later")
    assert num_parts > 1
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)
