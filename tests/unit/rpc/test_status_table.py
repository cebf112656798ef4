"""Conversion of errors to statuses and back."""

import grpc
import pytest

from baton.engine.errors import EngineError, InvalidRequest, QueueFull
from baton.kvtransfer.errors import PeerLost, TransferError
from baton.rpc.status import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    NotFound,
    Unauthenticated,
    Unavailable,
    code_number,
    error_from_code,
    message_of,
    status_of,
)


@pytest.mark.parametrize(
    ("error", "code", "http"),
    [
        (InvalidRequest("x"), grpc.StatusCode.INVALID_ARGUMENT, 400),
        (QueueFull("x"), grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
        (Unauthenticated("x"), grpc.StatusCode.UNAUTHENTICATED, 401),
        (NotFound("x"), grpc.StatusCode.NOT_FOUND, 404),
        (Unavailable("x"), grpc.StatusCode.UNAVAILABLE, 503),
        (DeadlineExceeded("x"), grpc.StatusCode.DEADLINE_EXCEEDED, 504),
        (PeerLost("x"), grpc.StatusCode.UNAVAILABLE, 503),
        (TransferError("x"), grpc.StatusCode.INTERNAL, 500),
        (EngineError("x"), grpc.StatusCode.INTERNAL, 500),
        (KeyError("x"), grpc.StatusCode.INTERNAL, 500),
    ],
)
def test_errors_have_their_status(error: Exception, code: grpc.StatusCode, http: int) -> None:
    assert (status_of(error).code, status_of(error).http) == (code, http)


def test_a_subclass_has_the_status_of_its_nearest_base() -> None:
    class TooLong(InvalidRequest):
        pass

    assert status_of(TooLong("x")).http == 400


@pytest.mark.parametrize(
    "kind", [InvalidRequest, QueueFull, NotFound, Unavailable, Cancelled, DeadlineExceeded, Internal]
)
def test_an_error_round_trips_through_its_code(kind: type[Exception]) -> None:
    error = error_from_code(code_number(kind("what is wrong")), "what is wrong")
    assert type(error) is kind
    assert str(error) == "what is wrong"


def test_an_unknown_code_is_internal() -> None:
    assert type(error_from_code(999, "x")) is Internal


def test_a_long_error_text_is_truncated() -> None:
    assert message_of(InvalidRequest("x" * 800)) == "x" * 800
    assert message_of(InvalidRequest("x" * 801)) == "x" * 800 + "..."


def test_an_authentication_failure_between_processes_is_not_a_client_error() -> None:
    assert type(error_from_code(code_number(Unauthenticated("x")), "x")) is Internal
