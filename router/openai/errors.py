"""Errors in OpenAI's shape."""

import http
import logging
import re
from collections.abc import Mapping

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route

from baton.engine.errors import EngineError, InvalidRequest
from baton.engine.sampling.params import SamplingParams
from baton.router.errors import (
    Draining,
    FieldError,
    KeyLimitReached,
    Overloaded,
    PinNotFound,
    RequestLost,
    ResumeFailed,
    WorkerLost,
)
from baton.router.openai.structured_output import GRAMMAR_FIELDS
from baton.rpc.status import ServiceError, message_of, shortened, status_of

logger = logging.getLogger(__name__)

CODES: Mapping[int, str] = {401: "invalid_api_key", 404: "model_not_found"}  # OpenAI's; otherwise the status
OWN_CODES: Mapping[type[Exception], str | int] = {
    Draining: "router_draining",
    PinNotFound: "pin_not_found",
    ResumeFailed: "resume_failed",
}
TOOL_PARAMETERS = re.compile(r"tools\[\d+\]\.function\.parameters")
RETRY_AFTER_S = "1"  # if there is no estimate
WORKER_LOST = "x-baton-worker-lost"  # header of 503: workers failed while they ran the request
NO_RETRY: Mapping[str, str] = {"x-should-retry": "false"}  # OpenAI's and Anthropic's clients retry other server errors


def error_body(message: str, kind: str, param: str | None, code: str | int | None) -> dict[str, object]:
    """Return OpenAI's error object."""
    return {"error": {"message": shortened(message), "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, object]]:
    """Return the HTTP status and body of an error. Logs internal errors, whose details clients do not get."""
    status = status_of(error)
    if status.http == 500:
        logger.error("a request failed", exc_info=error)
        return 500, error_body(message_of(error), status.kind, None, 500)
    if isinstance(error, KeyLimitReached):
        return status.http, error_body(str(error), error.kind, None, "rate_limit_exceeded")
    code: str | int = OWN_CODES.get(type(error), CODES.get(status.http, status.http))
    if isinstance(error, FieldError) and error.code is not None:
        code = error.code
    return status.http, error_body(str(error), status.kind, _param(error), code)


def error_response(error: Exception) -> Response:
    """Return the response for an error before the response has begun."""
    if isinstance(error, HTTPException):
        kind = "invalid_request_error" if error.status_code < 500 else "internal_server_error"
        message = str(error.detail or http.HTTPStatus(error.status_code).phrase)
        return _response(error.status_code, error_body(message, kind, None, error.status_code), error.headers)
    http_status, body = describe(error)
    headers: Mapping[str, str] | None = None
    if http_status == 401:
        headers = {"www-authenticate": "Bearer"}
    elif isinstance(error, RequestLost):
        headers = NO_RETRY
    elif http_status in (429, 503):
        headers = {"retry-after": str(error.retry_after_s) if isinstance(error, Overloaded) else RETRY_AFTER_S}
        if isinstance(error, WorkerLost):
            headers = {**headers, WORKER_LOST: "true"}
    return _response(http_status, body, headers)


def error_event(error: Exception) -> bytes:
    """Return the event of an error in a stream."""
    return b"data: " + orjson.dumps(describe(error)[1]) + b"\n\n"


def install_error_handlers(app: FastAPI) -> None:
    """Convert every error of the application to OpenAI's shape."""

    async def handle(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.status_code in (404, 405):
            return _unknown_url(request, _allowed_methods(app, request))
        return error_response(error)

    for kind in (HTTPException, EngineError, ServiceError, Exception):
        app.add_exception_handler(kind, handle)


def _allowed_methods(app: FastAPI, request: Request) -> set[str]:
    """Return the methods of the request's path; empty if there is no such path."""
    routes = (each for each in app.routes if isinstance(each, Route) and each.matches(request.scope)[0] != Match.NONE)
    methods = {method for route in routes for method in route.methods or ()}
    return methods | ({"HEAD"} if "GET" in methods else set())


def _unknown_url(request: Request, allowed: set[str]) -> Response:
    """Return the response for an unknown path or method, with OpenAI's code and text."""
    url = f"{request.method} {request.url.path}"
    if not allowed:
        text = f"Unknown request URL: {url}. Please check the URL for typos; /openapi.json lists those that are served."
        return _response(404, error_body(text, "invalid_request_error", None, "unknown_url"))
    names = ", ".join(sorted(allowed))
    text = f"Not allowed: {url}. Use another HTTP method: {names}."
    return _response(405, error_body(text, "invalid_request_error", None, "method_not_supported"), {"allow": names})


def _response(status: int, body: dict[str, object], headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")


def _param(error: Exception) -> str | None:
    if isinstance(error, FieldError):
        return error.field
    name = str(error).split(" ", 1)[0]  # the engine's messages begin with the option's name
    field = name.removesuffix(":")
    if isinstance(error, InvalidRequest) and (field in GRAMMAR_FIELDS or TOOL_PARAMETERS.fullmatch(field)):
        return field
    return name if isinstance(error, InvalidRequest) and name in SamplingParams.__dataclass_fields__ else None
