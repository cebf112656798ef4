"""Bodies read strictly: JSON by their type too, UTF-8, no half surrogate pairs (no tokenizer takes them), no NaN."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

# Lists and objects take far longer to build than texts of the same bytes, and everybody waits meanwhile.
# Brackets within texts count too: so many are in megabytes of source code, more than any context holds.
MAX_BRACKETS = 1 << 18


class StrictJsonRequest(Request):
    """A request whose JSON is read by orjson; a body that is none raises json.JSONDecodeError."""

    async def json(self) -> Any:
        """The body's value. Raises HTTPException (413) for one of too many lists and objects."""
        body = await self.body()
        if body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
            raise HTTPException(413, f"the body has over {MAX_BRACKETS} opening brackets")
        return orjson.loads(body)


class StrictJsonRoute(APIRoute):
    """A route that reads its body strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler behind a strict request."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if request.method == "POST" and not says_json(request.headers.get("content-type", "")):
                # Any web page may post other types to a server on its reader's machine, without asking it first.
                raise HTTPException(415, "the body must be JSON and said to be: send 'content-type: application/json'")
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return strict


def says_json(content_type: str) -> bool:
    """Whether a content type is JSON's."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))
