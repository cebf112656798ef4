"""Marks of `cache_control`: hints for the workers, and the usage that they show."""

import time
from typing import Any

from baton.router.anthropic.chat_request import chat_request
from baton.router.pipeline import num_common_chars
from tests.unit.router.anthropic.conversion import HELLO, PLAIN, TEXT, read, result, template_of, text, tool
from tests.unit.router.anthropic.conversion import call as called
from tests.unit.router.anthropic.test_messages import MESSAGES
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

MARK: dict[str, Any] = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
LONG = "You answer in verse. " * 10


def marked(**fields: Any) -> list[tuple[str, Any]]:
    """Return role and content of the marked messages."""
    messages = chat_request(read(**fields), template_of(PLAIN), TEXT)[1]
    return [(each["role"], each["content"]) for each in messages]


def test_the_last_mark_ends_the_marked_beginning() -> None:
    said = [{"role": "user", "content": [text("a", **MARK), text("b", **MARK), text("c")]}]
    system = [text("s", **MARK), text("t")]
    assert marked() == marked(system=[text("s")]) == []
    assert marked(system=system) == [("system", "s")]
    assert marked(system=system, messages=said) == [("system", "s\nt"), ("user", "a\nb")]
    assert marked(system=system, messages=said, **MARK) == [("system", "s\nt"), ("user", "a\nb\nc")]
    turns = [
        *HELLO, {"role": "assistant", "content": [called("1"), called("2")]},
        {"role": "user", "content": [result("1"), result("2", "two", **MARK), text("and?")]},
    ]  # fmt: skip
    assert [role for role, _ in marked(messages=turns)] == ["user", "assistant", "tool", "tool"]
    assert marked(system=[text("s")], tools=[{**tool("f"), **MARK}]) == [("system", "s")]


def test_many_marks_cost_as_much_as_one() -> None:
    said = [{"role": "user", "content": [text("a" * 5000, **MARK)]}] * 4000
    begin_s = time.process_time()
    [(_, content)] = marked(messages=said)
    assert len(content) == 4000 * 5001 - 1
    assert time.process_time() - begin_s < 1.5


async def test_marks_reach_the_workers_and_the_usage() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:

        async def usage(**fields: Any) -> tuple[int, dict[str, Any]]:
            body = {"messages": HELLO, "max_tokens": 2, **fields}
            answer = await router.http.post(MESSAGES, json=body)
            assert answer.status_code == 200, answer.text
            return worker.commands[-1].num_marked_tokens, answer.json()["usage"]

        num_marked, plain = await usage(system=[text(LONG)])
        assert (num_marked, plain["cache_creation_input_tokens"]) == (0, 0)
        num_prompt = plain["input_tokens"] + plain["cache_read_input_tokens"]
        num_marked, shown = await usage(system=[text(LONG, **MARK)], cache_salt="other")
        assert 40 < num_marked < num_prompt
        assert shown["cache_creation_input_tokens"] == num_marked - shown["cache_read_input_tokens"]
        assert sum(value for name, value in shown.items() if name != "output_tokens") == num_prompt
        streamed = await router.http.post(
            MESSAGES, json={"messages": HELLO, "max_tokens": 2, "stream": True, "system": [text(LONG)], **MARK}
        )
        assert streamed.status_code == 200
        assert num_prompt * 0.9 <= worker.commands[-1].num_marked_tokens <= num_prompt
        refused = await router.http.post(
            MESSAGES, json={"messages": HELLO, "max_tokens": 2, "cache_control": {"type": "ephemeral", "ttl": "2h"}}
        )
        assert refused.status_code == 400
        assert "cache_control.ttl" in refused.json()["error"]["message"]


def test_the_common_beginning_of_two_texts() -> None:
    assert num_common_chars("abcd", "abxd") == 2
    assert num_common_chars("abc", "abcdef") == num_common_chars("abcdef", "abc") == 3
    assert num_common_chars("", "a") == num_common_chars("b", "a") == 0
