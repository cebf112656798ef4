"""The routes of stored responses: GET, DELETE, input items, cancel."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from baton.engine.errors import EngineError
from baton.router.auth.client import Client
from baton.router.errors import FieldError
from baton.router.http.headers import read_headers
from baton.router.http.paced_response import PacedResponse
from baton.router.responses.conversation import ConversationLoader
from baton.router.responses.errors import NOT_FOUND, NotStored, error_response
from baton.router.responses.items import Json
from baton.router.responses.request import ID_PATTERN
from baton.router.responses.store.base import ResponseStore, TenantId, tenant_of
from baton.router.responses.store.factory import off_reason
from baton.router.responses.stored import StoredResponse, decode
from baton.router.service import RouterService
from baton.rpc.status import ServiceError

RESPONSE_ID = "response_id"  # name in errors
DEFAULT_LIMIT, MAX_LIMIT = 20, 100
STORED, INPUT_ITEMS, CANCEL = (f"/v1/responses/{{response_id}}{suffix}" for suffix in ("", "/input_items", "/cancel"))
PAGE: dict[str, Any] = {  # query parameters of input items
    "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    "order": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    "after": {"type": "string"},
}


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Which items a client asks for."""

    limit: int
    is_ascending: bool
    after: str | None  # id of the item in front of the first one

    def body(self, items: Sequence[Json]) -> Json:
        """Return the page of `items`, which are in ascending order. Raises NotStored for an unknown `after`."""
        ordered = list(items) if self.is_ascending else list(reversed(items))
        first = 0
        if self.after is not None:
            places = {item["id"]: place for place, item in enumerate(ordered)}
            if self.after not in places:
                raise NotStored(f"after: the response has no item with id '{self.after[:128]}'.", "after")
            first = places[self.after] + 1
        page = ordered[first : first + self.limit]
        ends = {"first_id": page[0]["id"] if page else "", "last_id": page[-1]["id"] if page else ""}
        return {"object": "list", "data": page, **ends, "has_more": first + self.limit < len(ordered)}


def read_page(query: Mapping[str, str]) -> ItemPage:
    """Return the page that a query string asks for. Raises FieldError."""
    limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", "desc")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MAX_LIMIT):
        raise FieldError("limit", f"limit: must be a number from 1 to {MAX_LIMIT}")
    if order not in ("asc", "desc"):
        raise FieldError("order", "order: must be asc or desc")
    return ItemPage(int(limit), order == "asc", query.get("after"))


class StoredResponsesApi:
    """Handler of requests for stored responses. A client sees those of its own tenant alone."""

    def __init__(self, service: RouterService) -> None:
        self._gate = service.gate
        self._unread = service.unread
        self._reads = asyncio.Semaphore(1)  # one at a time: a conversation may take many times its bytes in memory
        self._store = service.response_store
        self._off_reason = off_reason(service.config)

    async def retrieve(self, response_id: str, request: Request) -> Response:
        """Return a response."""
        try:
            client = self._client(request)
            tenant = tenant_of(client.key)
            if request.query_params.get("stream", "false").lower() not in ("false", "0"):
                raise FieldError("stream", "stream: a stored response is not streamed again; omit it")
            async with self._reads:
                return await self._json(client, (await self._stored(tenant, response_id)).response)
        except (EngineError, ServiceError) as error:
            return error_response(error)

    async def delete(self, response_id: str, request: Request) -> Response:
        """Delete a response. Later ones that continue it can then not be continued."""
        try:
            client = self._client(request)
            if not await self._needed(response_id).delete(tenant_of(client.key), response_id):
                raise self._not_found(response_id)
            return await self._json(client, {"id": response_id, "object": "response", "deleted": True})
        except (EngineError, ServiceError) as error:
            return error_response(error)

    async def input_items(self, response_id: str, request: Request) -> Response:
        """Return a page of the items from which a response was generated, those of earlier responses included."""
        try:
            client, page = self._client(request), read_page(request.query_params)
            loader = ConversationLoader(self._needed(response_id), None, tenant_of(client.key))
            async with self._reads:
                *earlier, last = await loader.chain(response_id, RESPONSE_ID, NOT_FOUND)
                items = [item for each in earlier for item in each.items]
                return await self._json(client, page.body([*items, *last.input]))
        except (EngineError, ServiceError) as error:
            return error_response(error)

    async def cancel(self, response_id: str, request: Request) -> Response:
        """Raise FieldError: only responses in the background could be cancelled, and there are none."""
        try:
            tenant = tenant_of(self._client(request).key)
            async with self._reads:
                await self._stored(tenant, response_id)
            text = f"Response '{response_id}' is complete; only background responses can be cancelled."
            raise FieldError(RESPONSE_ID, text)
        except (EngineError, ServiceError) as error:
            return error_response(error)

    def _client(self, request: Request) -> Client:
        """Return the client, and count the request. Raises Unauthenticated or KeyLimitReached."""
        client = self._gate.client(read_headers(request.scope["headers"]))
        client.begin()
        return client

    async def _json(self, client: Client, body: object) -> Response:
        """Return a response of JSON. A large one is encoded on a thread."""
        content = await asyncio.to_thread(orjson.dumps, body)
        return PacedResponse(content, "application/json", self._unread, client.fairness_key)

    async def _stored(self, tenant: TenantId, response_id: str) -> StoredResponse:
        record = await self._needed(response_id).get(tenant, response_id)
        if record is None:
            raise self._not_found(response_id)
        [response] = await decode([record.content])
        return response

    def _needed(self, response_id: str) -> ResponseStore:
        """Return the store. Raises NotStored if there is none, or no response can have this id."""
        if self._store is None or not re.fullmatch(ID_PATTERN, response_id):
            raise self._not_found(response_id)
        return self._store

    def _not_found(self, response_id: str) -> NotStored:
        text = f"Response with id '{response_id[:128]}' not found."
        if self._off_reason is not None:
            text = f"{text} Note that {self._off_reason}."
        return NotStored(text, RESPONSE_ID)


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
