"""The paths of stored responses."""

from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from baton.router.responses.stored_api import DEFAULT_LIMIT, MAX_LIMIT, StoredResponsesApi
from baton.router.service import RouterService

STORED, INPUT_ITEMS, CANCEL = (f"/v1/responses/{{response_id}}{suffix}" for suffix in ("", "/input_items", "/cancel"))
PAGE: dict[str, Any] = {  # query parameters of input items
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string"},
}


def add_routes(app: FastAPI, service: RouterService) -> None:
    """Add the paths to the application of requests without a body."""
    api = StoredResponsesApi(service)
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in PAGE.items()]
    for path, method, serve, extra in (
        (STORED, "GET", api.retrieve, {}),
        (STORED, "DELETE", api.delete, {}),
        (INPUT_ITEMS, "GET", api.input_items, {"parameters": parameters}),
        (CANCEL, "POST", api.cancel, {}),
    ):
        app.add_api_route(
            path, serve, methods=[method], response_class=Response, response_model=None, openapi_extra=extra
        )
