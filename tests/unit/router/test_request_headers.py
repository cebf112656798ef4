"""Routing hints, deadline and fairness key from headers."""

import time

import pytest

from baton.router.auth.client import ANONYMOUS
from baton.router.errors import FieldError
from baton.router.http.headers import read_context, read_resumption
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


def test_a_key_identifies_the_client_in_either_header() -> None:
    def key(**headers: str) -> str:
        return read_context({name.replace("_", "-"): value for name, value in headers.items()}, "me", 0).fairness_key

    assert key(x_api_key="secret") == key(x_api_key=" secret ") == key(authorization="Bearer secret")
    assert key(authorization="Bearer other", x_api_key="secret") == key(x_api_key="other") != key(x_api_key="secret")
    assert key(authorization="Basic abc", x_api_key="secret") == key(x_api_key="secret")
    assert key(x_api_key=" ") == key()


def test_a_resumed_request_has_the_identity_of_its_key_in_either_header() -> None:
    def digest(**headers: str) -> bytes:
        given = {"x-baton-resumable": "true", "x-request-id": "mine"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        resumption = read_resumption(given, ANONYMOUS, b"{}")
        assert resumption is not None
        return resumption.digest

    assert digest(x_api_key="secret") == digest(x_api_key="secret", user_agent="b")
    assert len({digest(), digest(x_api_key="secret"), digest(x_api_key="other"), digest(authorization="Basic a")}) == 4


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "nan", "inf", ""])
def test_invalid_timeouts_are_rejected(timeout: str) -> None:
    with pytest.raises(FieldError, match="x-baton-timeout is") as caught:
        read_context({"x-baton-timeout": timeout}, None, 0)
    assert caught.value.field == "x-baton-timeout"


def test_an_invalid_plan_is_rejected() -> None:
    with pytest.raises(FieldError, match="must be local or remote"):
        read_context({"x-baton-plan": "both"}, None, 0)
