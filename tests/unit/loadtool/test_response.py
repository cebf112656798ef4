"""Records read from the bytes of a response."""

import json

import pytest

from baton.loadtool.record import RequestRecord, ServedPath
from baton.loadtool.response import ResponseReader

STREAM = {"content-type": "text/event-stream; charset=utf-8"}


def event(content: object) -> bytes:
    return b"data: " + (content if isinstance(content, bytes) else json.dumps(content).encode()) + b"\n\n"


def text(piece: str, finish_reason: str | None = None) -> dict[str, object]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": finish_reason}], "usage": None}


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def usage(num_tokens: int) -> dict[str, object]:
    details = {"prompt_tokens_details": {"cached_tokens": 32}}
    return {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": num_tokens, **details}}


def read(*events: object, headers: dict[str, str] = STREAM, status: int = 200, num_requested: int = 3) -> RequestRecord:
    """Return the record of events that arrive at seconds 11, 12, ... of a run that starts at 10."""
    record = RequestRecord(num_requested, None, 0.5)
    reader = ResponseReader(record, 10.0)
    reader.head(status, headers)
    for number, each in enumerate(events, 1):
        reader.body(event(each), 10.0 + number)
    reader.end()
    return record


def test_times_and_counts_of_a_completion() -> None:
    record = read(text(""), text("a"), text("b"), text("cd", "length"), usage(5), b"[DONE]")
    assert record.failure is None
    assert list(record.token_times_s) == [2.0, 3.0, 4.0]
    assert (record.num_prompt_tokens, record.num_cached_tokens, record.num_output_tokens) == (40, 32, 5)
    assert record.is_counted
    assert record.ttft_s == 1.5
    assert record.e2e_s == 3.5
    assert record.tpot_s == 2.0 / 4


@pytest.mark.parametrize(
    "fields", [{"content": "a"}, {"reasoning_content": "a"}, {"reasoning": "a"}, {"tool_calls": [{"index": 0}]}]
)
def test_the_first_token_of_a_chat_is_its_first_output(fields: dict[str, object]) -> None:
    record = read(delta(role="assistant", content=""), delta(**fields), usage(1), b"[DONE]")
    assert list(record.token_times_s) == [2.0]
    assert record.tpot_s is None


def test_without_usage_each_event_counts_as_a_token() -> None:
    record = read(text("a"), text("b"), text("c", "stop"))
    assert (record.num_output_tokens, record.is_counted, record.failure) == (3, False, None)


def test_tokens_without_text_count_in_the_last_event() -> None:
    record = read(text(""), text("", "length"), usage(2), b"[DONE]")
    assert list(record.token_times_s) == [2.0]
    assert read(b'{"choices": [{"token_ids": [5], "text": ""}]}', b"[DONE]").ttft_s == 0.5


@pytest.mark.parametrize(
    ("events", "kind", "message"),
    [
        ((text("a"),), "cut off", "before its last event"),
        ((b"[DONE]",), "empty", "no output"),
        ((text("a"), {"error": {"message": "no KV left"}}), "error in the stream", "no KV left"),
        ((b"{",), "not understood", "{"),
        ((b"[1]",), "not understood", "[1]"),
        ((b'{"choices": 7}',), "not understood", "7"),
    ],
)
def test_broken_streams_are_failures(events: tuple[object, ...], kind: str, message: str) -> None:
    record = read(*events)
    assert record.failure is not None
    assert record.failure.kind == kind
    assert message in record.failure.message


def test_refusals_keep_the_servers_message() -> None:
    record = RequestRecord(3, None, 0.0)
    reader = ResponseReader(record, 0.0)
    reader.head(429, {"content-type": "application/json"})
    reader.body(b'{"error": {"message": "too ', 1.0)
    reader.body(b'many"}}', 2.0)
    reader.end()
    assert record.failure is not None
    assert (record.status, record.failure.kind, record.failure.message) == (429, "status 429", "too many")
    plain = read(headers={"content-type": "text/html"}, status=502)
    assert plain.failure is not None
    assert plain.failure.kind == "status 502"
    whole = read(headers={"content-type": "application/json"})
    assert whole.failure is not None
    assert whole.failure.kind == "no stream"


def test_a_baton_servers_headers_are_recorded() -> None:
    headers = {
        "x-baton-prefill": "prefill-0",
        "x-baton-decode": "decode-1",
        "x-baton-kv-transport": "tcp",
        "x-baton-cached-tokens": "16",
        "x-baton-handed-over-tokens": "24",
    }
    record = read(text("a", "stop"), headers={**STREAM, **headers})
    assert record.path == ServedPath("prefill-0", "decode-1", "tcp", 16, 24)
    assert record.path.is_remote
    assert read(text("a", "stop"), headers={**STREAM, **headers, "x-baton-cached-tokens": "?"}).path is None
