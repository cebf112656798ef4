"""Outputs of GPT-OSS through a router, in the three APIs: reasoning, a text in front of a call, and the call."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.marked_checkpoints import marked_checkpoint
from tests.unit.router.rigs.running_router import RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

SPECIAL = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
HELLO: Any = [{"role": "user", "content": "What time is it?"}]
TOOLS: Any = [{"type": "function", "function": {"name": "clock"}}]
ARGUMENTS = '{"zone": "Ö, <|x|>"}'
THOUGHT = "<|channel|>analysis<|message|>It is late.<|end|><|start|>assistant"
OUTPUT = (
    f"{THOUGHT}<|channel|>commentary<|message|>Let me look.<|end|>"
    f"<|start|>assistant<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("harmony") / "model"
    marks = "<|channel|> <|message|> thinking"
    return marked_checkpoint(directory, marks, SPECIAL, ("<|return|>", "<|call|>"), "<|start|>assistant")


@asynccontextmanager
async def writing(model: Path, output: str) -> AsyncIterator[RunningRouter]:
    """Run a router whose model writes a text after the first `<|start|>assistant`, with which the prompt ends."""
    worker = ScriptedWorker()
    async with running_router(worker, model=str(model)) as router:
        texts = ("<|start|>assistant", output)
        begin, output_ids = [
            (await router.http.post("/tokenize", json={"prompt": text})).json()["tokens"] for text in texts
        ]

        def script(token_ids: Sequence[int], _: object) -> int:
            return int(output_ids[min(len(token_ids) - token_ids.index(begin[0]) - len(begin), len(output_ids) - 1)])

        worker.script, worker.end_token = script, output_ids[-1]
        yield router


async def test_chat(model: Path) -> None:
    async with writing(model, OUTPUT) as router:
        options: Any = {"model": "model", "messages": HELLO, "tools": TOOLS}
        whole: Any = (await router.openai.chat.completions.create(**options)).choices[0]
        async with router.openai.chat.completions.stream(**options) as stream:
            async for _ in stream:
                pass
            streamed: Any = (await stream.get_final_completion()).choices[0]
        for choice in (whole, streamed):
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "Let me look."
            assert choice.message.reasoning_content == "It is late."
            [call] = choice.message.tool_calls
            assert (call.function.name, call.function.arguments) == ("clock", ARGUMENTS)


async def test_responses_and_messages(model: Path) -> None:
    async with writing(model, OUTPUT) as router:
        body: Any = {"model": "model", "input": HELLO[0]["content"], "tools": [{"type": "function", "name": "clock"}]}
        items = (await router.http.post("/v1/responses", json=body)).json()["output"]
        assert [item["type"] for item in items] == ["reasoning", "message", "function_call"]
        assert items[2]["arguments"] == ARGUMENTS
        tool = {"name": "clock", "input_schema": {"type": "object"}}
        body = {"model": "model", "messages": HELLO, "tools": [tool], "max_tokens": 100}
        answer = (await router.http.post("/v1/messages", json=body)).json()
        assert [block["type"] for block in answer["content"]] == ["thinking", "text", "tool_use"]
        assert answer["stop_reason"] == "tool_use"


async def test_an_output_that_is_cut_off_in_a_header(model: Path) -> None:
    async with writing(model, f"{THOUGHT}<|channel|>final<|message|>Noon.<|return|>") as router:
        body: Any = {"model": "model", "messages": HELLO}
        whole = (await router.http.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert (whole["message"]["content"], whole["finish_reason"]) == ("Noon.", "stop")
        header = (await router.http.post("/tokenize", json={"prompt": f"{THOUGHT}<|channel|>final"})).json()
        for num_left in range(4):
            body["max_tokens"] = header["count"] - num_left
            cut = (await router.http.post("/v1/chat/completions", json=body)).json()["choices"][0]
            assert cut["finish_reason"] == "length"
            assert (cut["message"]["content"], cut["message"]["reasoning"]) == (None, "It is late.")
