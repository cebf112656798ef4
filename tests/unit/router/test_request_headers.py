"""Routing hints, deadline and fairness key from headers."""

import time

import pytest

from baton.router.errors import FieldError
from baton.router.http.headers import read_context
from baton.router.request_context import NO_HINTS, RoutingHints


def test_without_headers_the_context_is_the_default() -> None:
    context = read_context({}, user=None, priority=0)
    assert (context.hints, context.fairness_key, context.deadline_s, context.priority) == (NO_HINTS, "", None, 0)


def test_hints_and_time() -> None:
    headers = {"x-baton-decode": "d-1", "x-baton-prefill": "p-2", "x-baton-plan": "remote", "x-baton-timeout": "2.5"}
    now_s = time.monotonic()
    context = read_context(headers, user=None, priority=-3, default_timeout_s=60.0)
    assert context.hints == RoutingHints("d-1", "p-2", "remote")
    assert context.priority == -3
    assert context.deadline_s is not None
    assert now_s + 2.5 <= context.deadline_s < now_s + 60
    by_default = read_context({}, user=None, priority=0, default_timeout_s=60.0)
    assert by_default.deadline_s is not None
    assert by_default.deadline_s >= now_s + 60
    assert read_context({"x-baton-plan": "local"}, None, 0).hints == RoutingHints(None, None, "local")


def test_the_fairness_key_identifies_the_client() -> None:
    def key(authorization: str | None, user: str | None) -> str:
        headers = {} if authorization is None else {"authorization": authorization}
        return read_context(headers, user, 0).fairness_key

    assert key("Bearer secret", "me") == key("bearer secret", None) != key("Bearer other", None)
    assert "secret" not in key("Bearer secret", None)
    assert key(None, "me") == key("Basic abc", "me") == key("Bearer ", "me") != key(None, "you")
    assert key(None, "secret") != key("Bearer secret", None)
    assert key(None, "") == ""


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "nan", "inf", ""])
def test_invalid_timeouts_are_rejected(timeout: str) -> None:
    with pytest.raises(FieldError, match="x-baton-timeout is") as caught:
        read_context({"x-baton-timeout": timeout}, None, 0)
    assert caught.value.field == "x-baton-timeout"


def test_an_invalid_plan_is_rejected() -> None:
    with pytest.raises(FieldError, match="must be local or remote"):
        read_context({"x-baton-plan": "both"}, None, 0)
