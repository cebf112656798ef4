"""Errors about files and batches, in OpenAI's shape."""

import orjson
from starlette.responses import Response

from baton.router.openai import errors
from baton.rpc.status import NotFound

OFF = "This server stores no files and runs no batches: start its routers with --files-dir DIR."


class UnknownId(NotFound):
    """A file or batch does not exist, or belongs to another tenant; or the server stores none."""

    def __init__(self, message: str, field: str = "id") -> None:
        """`field`: the request's field that has the id."""
        super().__init__(message)
        self.field = field


def error_response(error: Exception, _request_id: str = "") -> Response:
    """Return the response for an error before the response has begun."""
    if not isinstance(error, UnknownId):
        return errors.error_response(error)
    body = errors.error_body(str(error), "invalid_request_error", error.field, "not_found")
    return Response(orjson.dumps(body), 404, media_type="application/json")
