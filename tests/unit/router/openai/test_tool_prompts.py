"""What the chat template gets of tools, calls, results and the reasoning effort."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.unit.router.rigs.running_router import MODEL, RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CHAT = "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "clock", "description": "Tells the time", "strict": True}}
CALL = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "é"}'}}
CALLS: Any = [
    *HELLO,
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "hm"},
    {"role": "tool", "tool_call_id": "c1", "content": "noon"},
]
TOOL_TEMPLATE = """
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}<{{ message.role }}{{ message.tool_call_id }}>{{ message.reasoning_content }}
{%- for call in message.tool_calls or [] %}[{{ call.id }} {{ call.function.name }}
{%- for name, value in call.function.arguments.items() %} {{ name }}={{ value }}{% endfor %}]{% endfor %}
{{- message.content }}{% endfor %}
"""
EFFORT_TEMPLATE = "{{ messages[0].content }}{{ reasoning_effort }}"
SWITCH_TEMPLATE = "{{ messages[0].content }}{{ enable_thinking }}"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


async def prompt(router: RunningRouter, worker: ScriptedWorker, path: str = CHAT, **fields: Any) -> str:
    """Return the text of the prompt that the worker, or /tokenize, gets."""
    body = {"messages": HELLO, **fields}
    if path == CHAT:
        body = {"max_tokens": 1, **body}
    answer = await router.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    tokens = list(worker.commands[-1].token_ids) if path == CHAT else answer.json()["tokens"]
    text: str = (await router.http.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
    return text


async def test_tools_calls_and_results(model: Path) -> None:
    (model / "chat_template.jinja").write_text(TOOL_TEMPLATE)
    worker = ScriptedWorker()
    shown = '[{"type": "function", "function": {"name": "clock", "description": "Tells the time"}}]'
    async with running_router(worker, model=str(model), tool_call_parser="hermes") as router:
        for path in (CHAT, "/tokenize"):
            assert await prompt(router, worker, path, tools=[TOOL]) == f"{shown}<user>hello"
            assert await prompt(router, worker, path) == "<user>hello"
            text = await prompt(router, worker, path, tools=[TOOL], messages=CALLS)
            assert text == f"{shown}<user>hello<assistant>hm[c1 clock zone=é]<toolc1>noon"
        assert await prompt(router, worker, tools=[TOOL], tool_choice="none") == "<user>hello"
        answer = await router.http.post("/tokenize", json={"messages": HELLO, "tools": [TOOL, TOOL]})
        assert answer.json()["error"]["param"] == "tools[1].function.name"
        answer = await router.http.post("/tokenize", json={"messages": HELLO, "tools": [{}]})
        assert answer.json()["error"]["param"] == "tools[0].type"


async def test_the_effort_is_an_option_of_the_template(model: Path) -> None:
    (model / "chat_template.jinja").write_text(EFFORT_TEMPLATE)
    worker = ScriptedWorker()
    async with running_router(worker, model=str(model)) as router:
        assert await prompt(router, worker) == "hello"
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
            assert await prompt(router, worker, reasoning_effort=effort) == f"hello{effort}"
        kwargs = {"reasoning_effort": "own"}
        assert await prompt(router, worker, reasoning_effort="low", chat_template_kwargs=kwargs) == "helloown"
        error = (await router.http.post(CHAT, json={"messages": HELLO, "reasoning_effort": "most"})).json()["error"]
        assert error["param"] == "reasoning_effort"


async def test_the_effort_turns_thinking_on_and_off(model: Path) -> None:
    (model / "chat_template.jinja").write_text(SWITCH_TEMPLATE)
    worker = ScriptedWorker()
    async with running_router(worker, model=str(model)) as router:
        assert await prompt(router, worker, reasoning_effort="none") == "helloFalse"
        assert await prompt(router, worker, reasoning_effort="low") == "helloTrue"


async def test_a_template_without_an_effort_refuses_it() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        error = (await router.http.post(CHAT, json={"messages": HELLO, "reasoning_effort": "low"})).json()["error"]
        assert error["param"] == "reasoning_effort"
        assert "no such option" in error["message"]
        assert await prompt(router, worker, reasoning_effort=None)
    assert len(worker.commands) == 1
