"""Errors in Anthropic's shape, with its types and the names of its fields."""

import logging

import orjson
import pytest
from starlette.exceptions import HTTPException

from baton.engine.errors import InvalidRequest, QueueFull
from baton.router.anthropic.errors import error_response, renamed
from baton.router.errors import FieldError, NoWorker, Overloaded
from baton.router.limits import context_error
from baton.rpc.status import Cancelled, Conflict, DeadlineExceeded, Internal, NotFound, Unauthenticated

CASES: list[tuple[Exception, int, str, dict[str, str]]] = [
    (InvalidRequest("a"), 400, "invalid_request_error", {}),
    (Unauthenticated("a"), 401, "authentication_error", {"www-authenticate": "Bearer"}),
    (NotFound("a"), 404, "not_found_error", {}),
    (HTTPException(408, "a"), 408, "timeout_error", {}),
    (Conflict("a"), 409, "conflict_error", {}),
    (HTTPException(413, "a"), 413, "request_too_large", {}),
    (HTTPException(415, "a", {"accept-encoding": "gzip"}), 415, "invalid_request_error", {"accept-encoding": "gzip"}),
    (Overloaded("a", 7), 429, "rate_limit_error", {"retry-after": "7"}),
    (QueueFull("a"), 429, "rate_limit_error", {"retry-after": "1"}),
    (Cancelled("a"), 499, "invalid_request_error", {}),
    (Internal("a"), 500, "api_error", {}),
    (NoWorker("a"), 503, "overloaded_error", {"retry-after": "1"}),
    (DeadlineExceeded("a"), 504, "timeout_error", {}),
]


@pytest.mark.parametrize(("error", "status", "kind", "headers"), CASES)
def test_statuses_types_and_headers(error: Exception, status: int, kind: str, headers: dict[str, str]) -> None:
    response = error_response(error, "req")
    body = orjson.loads(response.body)
    assert (response.status_code, body["type"], body["request_id"]) == (status, "error", "req")
    assert body["error"]["type"] == kind
    assert body["error"]["message"].startswith("a")
    sent = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    assert sent == {**headers, "request-id": "req"}


def test_a_thread_is_refused_as_clients_expect_it() -> None:
    [refused, other] = [
        orjson.loads(error_response(FieldError(name, "a"), "req").body)["error"] for name in ("thread", "tools")
    ]
    assert refused["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert "details" not in other


def test_details_of_internal_errors_are_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        response = error_response(ValueError("secret"), "req")
    assert b"secret" not in response.body
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("tools[12].function.parameters: it is nested", "tools[12].input_schema: it is nested"),
        ("response_format.json_schema.schema: not", "output_config.format.schema: not"),
        ("stop has 3 strings, over the limit of 2", "stop_sequences has 3 strings, over the limit of 2"),
        ("stopping the server", "stopping the server"),
        ("the chat template rejects tools[0].function.parameters", None),
        ('tools are not supported; set tool_choice to "none"',
         'tools are not supported; set tool_choice to {"type": "none"}'),
        ("messages", None),
        ("", None),
    ],
)  # fmt: skip
def test_fields_of_chat_requests_are_renamed(message: str, expected: str | None) -> None:
    assert renamed(message) == (message if expected is None else expected)


def test_context_errors_have_the_wording_that_clients_match() -> None:
    def message(error: FieldError) -> str:
        text: str = orjson.loads(error_response(error, "").body)["error"]["message"]
        return text

    assert message(context_error("messages", 100, 120)) == "prompt is too long: 120 tokens > 100 maximum"
    expected = "input length and `max_tokens` exceed context limit: 80 + 30 > 100, decrease input length or"
    assert message(context_error("max_tokens", 100, 80, 30)).startswith(expected)
