"""The routes of `/v1/files`."""

import asyncio
from collections import Counter
from typing import Any, BinaryIO

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.router.auth.client import Client
from baton.router.errors import Overloaded
from baton.router.files.errors import OFF, UnknownId, error_response
from baton.router.files.multipart import boundary_of
from baton.router.files.page import PageRule
from baton.router.files.record import FileRecord, TenantId, tenant_of
from baton.router.files.store import FileStore
from baton.router.files.upload import Upload
from baton.router.http.headers import announced_size, is_gzip, read_headers
from baton.router.http.paced_response import PacedResponse
from baton.router.service import RouterService
from baton.rpc.status import Conflict

FILES, FILE, FILE_CONTENT = "/v1/files", "/v1/files/{file_id}", "/v1/files/{file_id}/content"
PAGES = PageRule(default_limit=10000, max_limit=10000)
READ_BYTES = 256 << 10  # of a content at once
MAX_UPLOADS, MAX_TENANT_UPLOADS = 16, 8  # at once
FORM: dict[str, Any] = {  # for /openapi.json
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": ["batch"]},
        "expires_after": {
            "type": "object",
            "required": ["anchor", "seconds"],
            "properties": {
                "anchor": {"type": "string", "enum": ["created_at"]},
                "seconds": {"type": "integer", "minimum": 3600, "maximum": 2592000},
            },
        },
    },
}


class _Content(Response):
    """Response with an open file, which it closes.

    Its end is sent with the last bytes: the client may send its next request at once.
    """

    def __init__(self, files: FileStore, file: BinaryIO, num_bytes: int) -> None:
        self._files = files
        self._file = file
        self._num_bytes = num_bytes
        headers = {"content-length": str(num_bytes)}
        super().__init__(headers=headers, media_type="application/octet-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        request, num_left = Request(scope, receive), self._num_bytes
        with self._file as file:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            has_more = True
            while has_more and not await request.is_disconnected():
                chunk = await self._files.disk.run(lambda: file.read(READ_BYTES))
                num_left -= len(chunk)
                has_more = bool(chunk) and num_left > 0
                await send({"type": "http.response.body", "body": chunk, "more_body": has_more})


class FilesApi:
    """Handler of requests for files. A client sees those of its own tenant alone."""

    def __init__(self, service: RouterService) -> None:
        self._gate = service.gate
        self._unread = service.unread
        self._lists = asyncio.Semaphore(1)  # one at a time: all records are read for a page
        self._files = service.files
        self._batches = service.batch_folder
        self._num_uploads: Counter[TenantId] = Counter()

    async def create(self, request: Request) -> Response:
        """Store a file."""
        headers = read_headers(request.scope["headers"])
        _, tenant, files = self._begin(request)
        if is_gzip(headers.get("content-encoding", "")):
            raise HTTPException(415, "a file must be sent without content-encoding")
        boundary = boundary_of(headers.get("content-type", ""))
        if self._num_uploads.total() >= MAX_UPLOADS or self._num_uploads[tenant] >= MAX_TENANT_UPLOADS:
            raise Overloaded("too many files are being uploaded", 5)
        self._num_uploads[tenant] += 1
        try:
            record = await Upload(files, tenant, boundary).receive(request.stream(), announced_size(headers))
        except ClientDisconnect:
            return Response(status_code=400)  # which no client receives
        finally:
            self._num_uploads -= Counter({tenant: 1})
        return _json(record.body())

    async def list(self, request: Request) -> Response:
        """Return a page of the files."""
        client, tenant, files = self._begin(request)
        query = request.query_params
        purpose = query.get("purpose")

        def page() -> bytes:
            records = files.folder.of_tenant(tenant)
            return orjson.dumps(PAGES.body(query, [each for each in records if purpose in (None, each.purpose)]))

        async with self._lists:
            return PacedResponse(await files.disk.run(page), "application/json", self._unread, client.fairness_key)

    async def retrieve(self, file_id: str, request: Request) -> Response:
        """Return a file's description."""
        _, tenant, files = self._begin(request)
        return _json((await self._find(files, tenant, file_id)).body())

    async def content(self, file_id: str, request: Request) -> Response:
        """Return a file's content."""
        _, tenant, files = self._begin(request)
        record = await self._find(files, tenant, file_id)
        file = await files.disk.run(lambda: files.folder.open(tenant, file_id))
        return _Content(files, file, record.num_bytes)

    async def delete(self, file_id: str, request: Request) -> Response:
        """Delete a file. Raises Conflict while a batch needs it."""
        _, tenant, files = self._begin(request)
        await self._find(files, tenant, file_id)
        assert self._batches is not None
        folder = self._batches
        user = await files.disk.run(lambda: folder.user_of(tenant, file_id))
        if user is not None:
            raise Conflict(f"{file_id} is the input of {user}, which has not ended; cancel the batch first")
        await files.disk.run(lambda: files.folder.delete(tenant, file_id), uses_quota=True)
        return _json({"id": file_id, "object": "file", "deleted": True})

    async def _find(self, files: FileStore, tenant: TenantId, file_id: str) -> FileRecord:
        return await files.disk.run(lambda: files.folder.find(tenant, file_id))

    def _begin(self, request: Request) -> tuple[Client, TenantId, FileStore]:
        """Count the request, and return its client, the tenant and the files. Raises UnknownId without a folder."""
        client = self._gate.client(read_headers(request.scope["headers"]))
        client.begin()
        if self._files is None:
            raise UnknownId(OFF)
        return client, tenant_of(client.key), self._files


def add_file_routes(app: FastAPI, service: RouterService) -> None:
    """Add the paths to the application of requests without a JSON body."""
    api = FilesApi(service)
    app.add_exception_handler(UnknownId, _handle)
    purpose = {"name": "purpose", "in": "query", "schema": {"type": "string"}}
    form = {"requestBody": {"content": {"multipart/form-data": {"schema": FORM}}, "required": True}}
    for path, method, serve, extra in (
        (FILES, "POST", api.create, form),
        (FILES, "GET", api.list, {"parameters": [*PAGES.parameters(), purpose]}),
        (FILE, "GET", api.retrieve, {}),
        (FILE, "DELETE", api.delete, {}),
        (FILE_CONTENT, "GET", api.content, {}),
    ):
        app.add_api_route(
            path, serve, methods=[method], response_class=Response, response_model=None, openapi_extra=extra
        )


async def _handle(_request: Request, error: Exception) -> Response:
    return error_response(error)


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
