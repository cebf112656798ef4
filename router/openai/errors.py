"""Errors in OpenAI's shape."""

import http
import logging
from collections.abc import Mapping

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from engine.errors import EngineError, InvalidRequest
from engine.sampling_params import SamplingParams
from router.errors import FieldError
from rpc.status import ServiceError, status_of

logger = logging.getLogger(__name__)

RETRY_AFTER_S = "1"


def error_body(message: str, kind: str, param: str | None, code: str | int | None) -> dict[str, object]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, object]]:
    """HTTP status and body of an error; one of our own failings is logged and not told in detail."""
    status = status_of(error)
    if status.http == 500:
        logger.error("a request failed", exc_info=error)
        message = str(error) if isinstance(error, ServiceError) else "internal error; the server's log has the details"
        return 500, error_body(message, status.kind, None, 500)
    code: str | int = "model_not_found" if status.http == 404 else status.http
    return status.http, error_body(str(error), status.kind, _param(error), code)


def error_response(error: Exception) -> Response:
    """The response for an error before any of the answer was sent."""
    http_status, body = describe(error)
    headers = {"retry-after": RETRY_AFTER_S} if http_status in (429, 503) else None
    return Response(orjson.dumps(body), http_status, headers, "application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Makes every error of the application an OpenAI-shaped one."""

    async def ours(_request: Request, error: Exception) -> Response:
        return error_response(error)

    async def validation(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        message, param = _first_problem(error)
        return Response(
            orjson.dumps(error_body(message, "invalid_request_error", param, 400)), 400, None, "application/json"
        )

    async def plain(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = "invalid_request_error" if error.status_code < 500 else "internal_server_error"
        message = str(error.detail or http.HTTPStatus(error.status_code).phrase)
        body = orjson.dumps(error_body(message, kind, None, error.status_code))
        return Response(body, error.status_code, error.headers, "application/json")

    app.add_exception_handler(RequestValidationError, validation)
    app.add_exception_handler(HTTPException, plain)
    for kind in (EngineError, ServiceError):
        app.add_exception_handler(kind, ours)
    app.add_exception_handler(Exception, ours)


def _param(error: Exception) -> str | None:
    if isinstance(error, FieldError):
        return error.field
    name = str(error).split(" ", 1)[0]  # the engine's texts begin with the option's name
    return name if isinstance(error, InvalidRequest) and name in SamplingParams.__dataclass_fields__ else None


def _first_problem(error: RequestValidationError) -> tuple[str, str | None]:
    problems = error.errors()
    first: Mapping[str, object] = problems[0] if problems else {}
    location = first.get("loc")
    parts = [str(part) for part in location if part != "body"] if isinstance(location, tuple) else []
    if first.get("type") == "json_invalid":
        return "the body is no valid JSON", None
    param = parts[0] if parts else None
    return f"{'.'.join(parts) or 'body'}: {first.get('msg', 'invalid')}", param
