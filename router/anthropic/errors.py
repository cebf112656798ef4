"""Errors in Anthropic's shape, under the names that fields have in its API."""

import http
import logging
import re
from collections.abc import Mapping, Sequence

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from baton.router.errors import ContextExceeded, FieldError, Overloaded, RequestLost
from baton.router.openai.errors import NO_RETRY, RETRY_AFTER_S
from baton.rpc.status import message_of, shortened, status_of

logger = logging.getLogger(__name__)

REQUEST_ID = "request-id"  # response header, in addition to `x-request-id`
KINDS: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
# Names of chat requests' fields at the beginning of a message, and of the same fields here.
NAMES: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"tools\[(\d+)\]\.function\.parameters"), r"tools[\1].input_schema"),
    (re.compile(r"response_format\.json_schema\.schema"), "output_config.format.schema"),
    (re.compile(r"response_format"), "output_config.format"),
    (re.compile(r"stop"), "stop_sequences"),
    (re.compile(r"user"), "metadata.user_id"),
)
# Anthropic's clients then send the request again without a thread.
NO_THREADS: Mapping[str, object] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
NO_TOOLS = ('set tool_choice to "none"', 'set tool_choice to {"type": "none"}')


def error_response(error: Exception, request_id: str) -> Response:
    """Return the response for an error before the response has begun."""
    status = _status(error)
    headers = dict((isinstance(error, HTTPException) and error.headers) or {})
    headers[REQUEST_ID] = request_id
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    elif isinstance(error, RequestLost):
        headers |= NO_RETRY
    elif status in (429, 503):
        headers["retry-after"] = str(error.retry_after_s) if isinstance(error, Overloaded) else RETRY_AFTER_S
    return Response(orjson.dumps(error_body(error, request_id)), status, headers, "application/json")


def error_body(error: Exception, request_id: str) -> dict[str, object]:
    """Return the body of an error. Logs internal errors, whose details clients do not get."""
    status = _status(error)
    if status == 500:
        logger.error("a request failed", exc_info=error)
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    content: dict[str, object] = {"type": kind, "message": shortened(_message(error))}
    if isinstance(error, FieldError) and error.field == "thread":
        content["details"] = NO_THREADS
    return {"type": "error", "error": content, "request_id": request_id}


def _status(error: Exception) -> int:
    return error.status_code if isinstance(error, HTTPException) else status_of(error).http


def _message(error: Exception) -> str:
    if isinstance(error, HTTPException):
        return str(error.detail or http.HTTPStatus(error.status_code).phrase)
    if isinstance(error, ContextExceeded):
        return context_message(error)
    return renamed(message_of(error))


def context_message(error: ContextExceeded) -> str:
    """Return the message for a request that exceeds the context, in the wording that Anthropic's clients match."""
    if not error.num_output_tokens:
        return f"prompt is too long: {error.num_tokens} tokens > {error.max_model_len} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {error.num_tokens} + {error.num_output_tokens} > "
        f"{error.max_model_len}, decrease input length or `max_tokens` and try again"
    )


def renamed(message: str) -> str:
    """Return a message of the chat API, which begins with a field's name, with the name of the same field here."""
    first, space, rest = message.partition(" ")
    name = first.removesuffix(":")
    for pattern, own in NAMES:
        if match := pattern.fullmatch(name):
            first = match.expand(own) + first[len(name) :]
            break
    return f"{first}{space}{rest}".replace(*NO_TOOLS)
