"""Errors about stored responses, in OpenAI's shape."""

import orjson
from starlette.responses import Response

from baton.router.openai import errors
from baton.rpc.status import NotFound

NOT_FOUND, PREVIOUS_NOT_FOUND = "not_found", "previous_response_not_found"


class NotStored(NotFound):
    """A response or an item is not stored, or belongs to another tenant."""

    def __init__(self, message: str, field: str, code: str = NOT_FOUND) -> None:
        """`field`: its name in the request. `code`: OpenAI's `error.code`."""
        super().__init__(message)
        self.field = field
        self.code = code


def error_response(error: Exception, _request_id: str = "") -> Response:
    """Return the response for an error before the response has begun."""
    if not isinstance(error, NotStored):
        return errors.error_response(error)
    body = errors.error_body(str(error), "invalid_request_error", error.field, error.code)
    return Response(orjson.dumps(body), 404, media_type="application/json")
