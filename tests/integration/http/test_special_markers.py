"""Calls and reasoning that a model marks with special tokens: enforced, streamed, handed over and resumed."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from tokenizers import Tokenizer

from benchmarks.server import served
from tests.integration.received_call import NUM_SEEN, NUM_WORDS, PARAMETERS, TOOL, Received
from tests.integration.workers_view import pid_of, wait_all_ready
from tests.marked_checkpoints import GENERATION_PROMPT, marked_checkpoint
from tests.marks import slow_case

QUESTION = [{"role": "user", "content": "What is the weather in Oslo? " * 20}]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CLOCK = {"type": "object", "properties": {"offset": {"type": "integer", "minimum": -12, "maximum": 14}},
         "required": ["offset"], "additionalProperties": False}  # fmt: skip
SCHEMAS = {"weather": WEATHER, "clock": CLOCK}


def functions(strict: bool = False) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}
        for name, schema in SCHEMAS.items()
    ]


@dataclass(frozen=True)
class Model:
    """A format whose markers are special tokens."""

    marks: str
    special: tuple[str, ...]
    ends: tuple[str, ...] = ()
    generation_prompt: str = GENERATION_PROMPT
    # The bundled model knows no markers: it writes them if their probability is raised, as far as the grammar lets it.
    thinks: tuple[str, ...] = ()  # first tokens of the texts with which it begins, ends and leaves its reasoning
    calls: tuple[str, ...] = ()


MODELS = {
    "mistral": Model(
        "[THINK] [TOOL_CALLS]",
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
        thinks=("[THINK]", "[/THINK]"),
        calls=("[TOOL_CALLS]",),
    ),
    "openai": Model(
        "<|channel|> <|message|>",
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
        ends=("<|return|>", "<|call|>"),
        generation_prompt="<|start|>assistant",
        thinks=("<|end|>", "final"),
        calls=("<|end|>", "commentary", " to="),
    ),
}


@pytest.mark.parametrize("name", [*map(slow_case, MODELS)])
async def test_special_tokens_around_calls_and_reasoning(name: str, tmp_path: Path) -> None:
    form = MODELS[name]
    model = marked_checkpoint(tmp_path / name, form.marks, form.special, form.ends, form.generation_prompt)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def favoured(*texts: str) -> dict[str, float]:
        ids = {text: tokenizer.encode(text, add_special_tokens=False).ids[0] for text in texts}
        return {str(token_id): 8.0 if text in ("[/THINK]", "<|end|>") else 14.0 for text, token_id in ids.items()}

    flags = ("--prefill=1", "--decode=2", "--dtype=float32", "--num-threads=1")
    async with (
        served(str(model), *flags) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600) as client,
        httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as http,
    ):
        await wait_all_ready(url)
        common: dict[str, Any] = {
            "model": name, "messages": QUESTION, "max_tokens": 500, "temperature": 1, "seed": 5,
            "parallel_tool_calls": False, "extra_headers": {"x-request-id": "markers"},
        }  # fmt: skip
        named = {"type": "function", "function": {"name": "clock"}}
        for case in (
            {"tools": functions(), "tool_choice": "required"},
            {"tools": functions(), "tool_choice": named},
            {"tools": functions(strict=True), "logit_bias": favoured(*form.calls)},
        ):
            options: Any = {**common, "logit_bias": favoured(*form.thinks, *form.calls), **case}
            whole: Any = (await client.chat.completions.create(**options)).choices[0]
            async with client.chat.completions.stream(**options) as stream:
                async for _ in stream:
                    pass
                streamed: Any = (await stream.get_final_completion()).choices[0]
            assert whole.finish_reason == streamed.finish_reason == "tool_calls", whole
            assert not whole.message.content
            [call], [again] = whole.message.tool_calls, streamed.message.tool_calls
            assert (call.id, call.function.name, call.function.arguments) == (
                again.id, again.function.name, again.function.arguments,
            )  # fmt: skip
            assert (whole.message.reasoning or "") == (getattr(streamed.message, "reasoning", None) or "")
            jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
            assert call.function.name == "clock" or case.get("tool_choice") is not named
        answer: Any = {
            **{key: value for key, value in common.items() if key != "parallel_tool_calls"},
            "response_format": {"type": "json_schema", "json_schema": {"name": "clock", "schema": CLOCK}},
            "logit_bias": favoured(*form.thinks),
        }
        message: Any = (await client.chat.completions.create(**answer)).choices[0].message
        jsonschema.validate(json.loads(message.content), CLOCK)
        if name == "mistral":  # in Harmony the first word of the output decides
            assert message.reasoning is not None
        await check_moves(url, http, favoured(*form.thinks, *form.calls))


async def check_moves(url: str, http: httpx.AsyncClient, bias: dict[str, float]) -> None:
    """Check that a call has the same tokens after a handover, a local prefill, and the death of its decode worker."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Say some words. " * 30}], "tools": [TOOL], "tool_choice": "required",
        "parallel_tool_calls": False, "max_tokens": 900, "temperature": 1, "seed": 11, "top_k": -1, "top_p": 1,
        "repetition_penalty": 1, "stream": True, "return_token_ids": True, "logit_bias": bias,
    }  # fmt: skip
    results: dict[str, Received] = {}
    for case in ("handover", "local", "killed"):
        await wait_all_ready(url)
        received = results[case] = Received()
        body["cache_salt"] = "handover" if case == "local" else case
        headers = {"x-request-id": "words"}
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            lines = response.aiter_lines()
            await received.read(lines, NUM_SEEN)
            assert (int(response.headers["x-baton-handed-over-tokens"]) > 0) == (case != "local")
            if case == "killed":
                os.kill(await pid_of(response.headers["x-baton-decode"], url), signal.SIGKILL)
            await received.read(lines)
    first = results["handover"]
    assert first.finish_reason == "tool_calls"
    arguments = json.loads(first.arguments)
    jsonschema.validate(arguments, PARAMETERS)
    assert len(arguments["words"]) == NUM_WORDS
    assert len(first.token_ids) > NUM_SEEN
    for case, received in results.items():
        assert received == first, case
