"""Errors in the protocol's shape: an object with the text alone."""

import http
import logging

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from baton.router.errors import FieldError, Overloaded
from baton.router.kserve.tensors import TEXT_INPUT
from baton.router.openai.errors import RETRY_AFTER_S
from baton.rpc.status import message_of, shortened, status_of

logger = logging.getLogger(__name__)

TENSORS = {"prompt": TEXT_INPUT}  # by the field of the completions API that they set


def error_text(error: Exception) -> str:
    """Return the text of an error, which begins with the tensor or parameter at fault. Logs internal errors."""
    if status_of(error).http == 500:
        logger.error("a request failed", exc_info=error)
    text = message_of(error)
    if not isinstance(error, FieldError):
        return text
    name = TENSORS.get(error.field, error.field)
    return text if text.startswith(name) else shortened(f"{name}: {text}")


def error_body(text: str) -> bytes:
    """Return the JSON of an error."""
    return orjson.dumps({"error": text})


def error_response(error: Exception, _request_id: str = "") -> Response:
    """Return the HTTP response for an error before the response has begun."""
    if isinstance(error, HTTPException):
        text = shortened(str(error.detail or http.HTTPStatus(error.status_code).phrase))
        return Response(error_body(text), error.status_code, error.headers, "application/json")
    status, headers = status_of(error).http, {}
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    elif status in (429, 503):
        headers["retry-after"] = str(error.retry_after_s) if isinstance(error, Overloaded) else RETRY_AFTER_S
    return Response(error_body(error_text(error)), status, headers, "application/json")
