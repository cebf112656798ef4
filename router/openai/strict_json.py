"""Bodies read strictly: UTF-8, no half surrogate pairs (no tokenizer takes them), no NaN, bounded nesting."""

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response


class StrictJsonRequest(Request):
    """A request whose JSON is read by orjson; a body that is none raises json.JSONDecodeError."""

    async def json(self) -> Any:
        """The body's value."""
        return orjson.loads(await self.body())


class StrictJsonRoute(APIRoute):
    """A route that reads its body strictly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler behind a strict request."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictJsonRequest(request.scope, request.receive))

        return strict
