"""`baton chat` against a real HTTP server."""

import gc
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from baton.__main__ import main
from baton.cli.display.chat_stream import Answer, sse_data
from baton.deployment.local.ports import free_ports
from baton.rpc.router_client import ServerError
from tests.unit.cli.small_server import Reply, Routes, json_reply, serving, sse_reply

MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model"}]}
SERVED_BY = {"x-baton-prefill": "prefill-0", "x-baton-decode": "decode-0", "x-baton-kv-transport": "shared_memory"}


def chunk(text: str | None, finish_reason: str | None = None) -> object:
    delta = {} if text is None else {"content": text}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]}


def usage(tokens: int) -> object:
    return {"choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 2}}


def chat(url: str, lines: list[str], *arguments: str) -> Result:
    return CliRunner().invoke(main, ["chat", "--url", url, *arguments], input="\n".join(lines) + "\n")


class Echo:
    """A model that responds with the number of turns and the last one."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []

    def __call__(self, content: dict[str, object]) -> Reply:
        self.bodies.append(content)
        messages = content["messages"]
        assert isinstance(messages, list)
        text = f"{len(messages)}:[b]{messages[-1]['content']}"
        return sse_reply([chunk(text[:3]), chunk(text[3:]), chunk(None, "stop"), usage(7)], SERVED_BY)


def routes(echo: Echo) -> Routes:
    return {"/v1/models": lambda _: json_reply(MODELS), "/v1/chat/completions": echo}


def test_turns_are_kept_until_they_are_cleared() -> None:
    echo = Echo()
    with serving(routes(echo)) as url:
        result = chat(url, ["hello", "again", "/clear", "new", "/exit", "never"], "--system", "Be brief.")
    assert result.exit_code == 0, result.output
    assert "2:[b]hello" in result.output
    assert "4:[b]again" in result.output
    assert "2:[b]new" in result.output
    assert "never" not in result.output
    assert echo.bodies[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "2:[b]hello"},
        {"role": "user", "content": "again"},
    ]


def test_only_given_options_reach_the_server() -> None:
    echo = Echo()
    with serving(routes(echo)) as url:
        result = chat(url, ["hello"], "--temperature", "0", "--max-tokens", "5", "--seed", "3")
    assert result.exit_code == 0, result.output
    sent = {name: value for name, value in echo.bodies[0].items() if name != "messages"}
    assert sent == {
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "max_tokens": 5,
        "seed": 3,
    }


def test_verbose_shows_how_a_response_was_served() -> None:
    with serving(routes(Echo())) as url:
        quiet, verbose = chat(url, ["hello"]), chat(url, ["hello"], "--verbose")
    assert "prefill-0" not in quiet.output
    assert "prefill prefill-0, decode decode-0, kv transport shared_memory, prompt tokens 7" in verbose.output


def delta(**fields: object) -> object:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def call(index: int, arguments: str, **fields: str) -> object:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return delta(tool_calls=[{"index": index, **fields, "function": {**name, "arguments": arguments}}])


TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALLS = [
    delta(role="assistant", content=""),
    delta(reasoning="I should ", reasoning_content="I should "),
    delta(reasoning="ask.", reasoning_content="ask."),
    delta(content="One moment."),
    call(0, "", id="call_a", name="weather"),
    call(0, '{"city": '),
    call(0, '"Oslo"}'),
    call(1, '{"city": "Rome"}', id="call_b", name="weather"),
    chunk(None, "tool_calls"),
]


def test_reasoning_and_calls_are_shown_and_results_sent(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(content: dict[str, Any]) -> Reply:
        bodies.append(content)
        return sse_reply(CALLS if len(bodies) == 1 else [chunk("Cold and warm.", "stop")], {})

    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    with serving({"/v1/models": lambda _: json_reply(MODELS), "/v1/chat/completions": answer}) as url:
        result = chat(url, ["hello", "3 degrees", "20 degrees"], "--tools", str(tmp_path / "tools.json"))
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[:4] == [
        "I should ask.",
        "One moment.",
        'weather {"city": "Oslo"}',
        'weather {"city": "Rome"}',
    ]
    assert "Cold and warm." in result.output
    assert [body["tools"] for body in bodies] == [TOOLS, TOOLS]
    _, assistant, *results = bodies[1]["messages"]
    assert assistant["content"] == "One moment."
    assert [(each["id"], each["function"]) for each in assistant["tool_calls"]] == [
        ("call_a", {"name": "weather", "arguments": '{"city": "Oslo"}'}),
        ("call_b", {"name": "weather", "arguments": '{"city": "Rome"}'}),
    ]
    assert results == [
        {"role": "tool", "tool_call_id": "call_a", "content": "3 degrees"},
        {"role": "tool", "tool_call_id": "call_b", "content": "20 degrees"},
    ]


def test_a_message_whose_calls_get_no_result_is_withdrawn(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(content: dict[str, Any]) -> Reply:
        bodies.append(content)
        return sse_reply(CALLS, {})

    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    with serving({"/v1/models": lambda _: json_reply(MODELS), "/v1/chat/completions": answer}) as url:
        result = chat(url, ["hello", "3 degrees"], "--tools", str(tmp_path / "tools.json"))
    assert result.exit_code == 0, result.output
    assert len(bodies) == 1


@pytest.mark.parametrize(("content", "message"), [("{", "is not a JSON file"), ("{}", "must have a list of tools")])
def test_a_file_without_tools_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tools.json").write_text(content)
    result = chat("http://127.0.0.1:1", [], "--tools", str(tmp_path / "tools.json"))
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_the_servers_error_message_is_shown() -> None:
    refusal = json_reply({"error": {"message": "the prompt has 9 tokens, but 8 are allowed"}}, 400)
    with serving({"/v1/models": lambda _: json_reply(MODELS), "/v1/chat/completions": lambda _: refusal}) as url:
        result = chat(url, ["hello"])
    assert result.exit_code == 1
    assert "Error: 400: the prompt has 9 tokens, but 8 are allowed" in result.output


def test_an_error_in_mid_stream_is_shown() -> None:
    broken = [chunk("half"), {"error": {"message": "no worker is left"}}]
    answer = {"/v1/models": lambda _: json_reply(MODELS), "/v1/chat/completions": lambda _: sse_reply(broken, {})}
    with serving(answer) as url:
        result = chat(url, ["hello"])
    assert result.exit_code == 1
    assert "half" in result.output
    assert "Error: no worker is left" in result.output


def test_without_a_server_the_error_says_what_to_do() -> None:
    result = chat(f"http://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}", ["hello"])
    assert result.exit_code == 1
    assert "no server answers at http://127.0.0.1:" in result.output
    assert "baton serve" in result.output


@pytest.fixture
def _handled_sigint() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt even if the tests run in a shell's background, which ignores it.

    There is no garbage collection meanwhile: hypothesis adds a callback to it, in which the exception would be ignored.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    yield
    gc.enable()
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_handled_sigint")
def test_ctrl_c_stops_a_response_and_the_conversation_continues() -> None:
    client_left = threading.Event()
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    first = True

    def endless() -> Iterator[bytes]:
        event = sse_reply([chunk("more ")], {}).body
        assert isinstance(event, list)
        try:
            yield event[0]
            signal.pthread_kill(main_thread, signal.SIGINT)
            while True:
                yield event[0]
        finally:
            client_left.set()

    def answer(content: dict[str, object]) -> Reply:
        nonlocal first
        was_first, first = first, False
        return Reply(endless()) if was_first else Echo()(content)

    with serving({"/v1/models": lambda _: json_reply(MODELS), "/v1/chat/completions": answer}) as url:
        result = chat(url, ["hello", "again"])
        assert client_left.wait(10)
    assert result.exit_code == 0, result.output
    assert "(stopped)" in result.output
    assert "3:[b]again" in result.output


def test_a_conversation_at_a_terminal_survives_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    echo, answers = Echo(), [Reply([b"cut"], headers={"content-length": "9"})]
    routes: Routes = {
        "/v1/models": lambda _: json_reply(MODELS),
        "/v1/chat/completions": lambda content: answers.pop() if answers else echo(content),
    }
    with serving(routes) as url:
        result = chat(url, ["lost", "hello", "/exit"])
    assert result.exit_code == 0, result.output
    assert "peer closed connection" in result.output
    assert "1:[b]hello" in result.output


@pytest.mark.parametrize(
    ("lines", "data"),
    [
        (["data: a", "", "data:b", ""], ["a", "b"]),
        (["data: a", "data: b", ""], ["a\nb"]),
        ([": comment", "event: x", "data: a", "", "data: [DONE]", "", "data: late", ""], ["a"]),
        (["data: cut"], ["cut"]),
        (["", "", "data: [DONE]"], []),
    ],
)
def test_server_sent_events_are_parsed(lines: list[str], data: list[str]) -> None:
    assert list(sse_data(iter(lines))) == data


@pytest.mark.parametrize("data", ["<html>", "[" * 100_000])
def test_an_event_without_json_is_an_error_of_the_server(data: str) -> None:
    with pytest.raises(ServerError, match="an event of the server is not a completion"):
        list(Answer({}, iter([data])).parts())
