"""The routes of `/v1/batches`."""

import asyncio
import time

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from baton.router.auth.client import Client
from baton.router.batches.folder import BatchFolder
from baton.router.batches.record import BatchRecord, new_batch_id
from baton.router.batches.request import BatchRequest
from baton.router.errors import FieldError
from baton.router.files.errors import OFF, UnknownId
from baton.router.files.page import PageRule
from baton.router.files.record import TenantId, tenant_of
from baton.router.files.store import FileStore
from baton.router.files.upload import PURPOSE
from baton.router.http.exchange import Exchange
from baton.router.http.headers import read_headers
from baton.router.http.paced_response import PacedResponse
from baton.router.service import RouterService

BATCHES, BATCH, CANCEL = "/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"
PAGES = PageRule(default_limit=20, max_limit=100)


class BatchesApi:
    """Handler of requests for batches. A client sees those of its own tenant alone."""

    def __init__(self, service: RouterService) -> None:
        self._gate = service.gate
        self._unread = service.unread
        self._lists = asyncio.Semaphore(1)  # one at a time: all records are read for a page
        self._files = service.files
        self._batches = service.batch_folder

    async def create(self, body: BatchRequest, exchange: Exchange) -> None:
        """Store a batch, which a router then runs."""
        client = exchange.client
        tenant, files, batches = self._needed(client)
        try:
            file = await files.disk.run(lambda: files.folder.find(tenant, body.input_file_id))
        except UnknownId as error:
            raise UnknownId(str(error), "input_file_id") from None
        if file.purpose != PURPOSE:
            text = f"input_file_id: the purpose of {file.id} is '{file.purpose}', but must be '{PURPOSE}'"
            raise FieldError("input_file_id", text)
        now_s = int(time.time())
        record = BatchRecord(
            id=new_batch_id(),
            key_name=None if client.key is None else client.key.name,
            endpoint=body.endpoint,
            input_file_id=file.id,
            completion_window=body.completion_window,
            created_at=now_s,
            expires_at=now_s + body.window_s(),
            metadata=body.metadata,
            output_expires_s=None if body.output_expires_after is None else body.output_expires_after.seconds,
        )
        await files.disk.run(lambda: batches.create(tenant, record), uses_quota=True)
        await exchange.respond(200, orjson.dumps(record.body(None)))

    async def list(self, request: Request) -> Response:
        """Return a page of the batches."""
        client, tenant, files, batches = self._begin(request)
        async with self._lists:
            query = request.query_params
            page = await files.disk.run(lambda: orjson.dumps(PAGES.body(query, batches.of_tenant(tenant))))
        return PacedResponse(page, "application/json", self._unread, client.fairness_key)

    async def retrieve(self, batch_id: str, request: Request) -> Response:
        """Return a batch."""
        _, tenant, files, batches = self._begin(request)
        return _json((await files.disk.run(lambda: batches.find(tenant, batch_id))).body())

    async def cancel(self, batch_id: str, request: Request) -> Response:
        """Cancel a batch. Its owner ends it soon after."""
        _, tenant, files, batches = self._begin(request)
        return _json((await files.disk.run(lambda: batches.cancel(tenant, batch_id))).body())

    def _begin(self, request: Request) -> tuple[Client, TenantId, FileStore, BatchFolder]:
        """Count the request, and return its client and what it needs. Raises UnknownId without a folder."""
        client = self._gate.client(read_headers(request.scope["headers"]))
        client.begin()
        return client, *self._needed(client)

    def _needed(self, client: Client) -> tuple[TenantId, FileStore, BatchFolder]:
        if self._files is None or self._batches is None:
            raise UnknownId(OFF)
        return tenant_of(client.key), self._files, self._batches


def add_batch_routes(app: FastAPI, service: RouterService) -> None:
    """Add the paths of requests without a body."""
    api = BatchesApi(service)
    for path, method, serve, extra in (
        (BATCHES, "GET", api.list, {"parameters": PAGES.parameters()}),
        (BATCH, "GET", api.retrieve, {}),
        (CANCEL, "POST", api.cancel, {}),
    ):
        app.add_api_route(
            path, serve, methods=[method], response_class=Response, response_model=None, openapi_extra=extra
        )


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
