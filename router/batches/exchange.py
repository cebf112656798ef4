"""The exchange of one request of a batch: its response is kept instead of sent."""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from baton.router.admission.body_budget import Upload
from baton.router.auth.client import Client
from baton.router.batches.held_bytes import HeldBytes
from baton.router.errors import FieldError
from baton.router.http.exchange import EventSource
from baton.router.openai.errors import WORKER_LOST
from baton.router.resumption.resumption import Resumption
from baton.router.tracing.request_trace import RequestTrace

NO_HEADERS: Mapping[str, str] = {}


class LineExchange:
    """An `Exchange` without a connection."""

    def __init__(self, client: Client, body: bytes, held: HeldBytes) -> None:
        """`body`: JSON; `held`: counts what requests keep of their bodies."""
        self.request_id = uuid.uuid4().hex
        self.client = client
        self.resumption: Resumption | None = None
        self.trace: RequestTrace | None = None
        self.address = "batch"
        self.upload: Upload | None = None
        self.refusal: Exception | None = None
        self.disconnected = False
        self.response_headers: dict[str, str] = {}
        self.is_behind = False
        self.status: int | None = None  # of the response
        self.response = b""
        self.retry_after_s = 0
        self.worker_lost = False  # workers failed while they ran the request
        self._body = body
        self._held = held
        self._num_kept = 0

    @property
    def headers(self) -> Mapping[str, str]:
        """Return no headers."""
        return NO_HEADERS

    @property
    def started(self) -> bool:
        """Whether there is a response."""
        return self.status is not None

    async def read(self, max_bytes: int) -> bytes | bytearray:
        """Return the body."""
        return self._body

    def forget_body(self, num_kept: int = 0) -> None:
        """Free the body, and count the bytes that the request keeps until `end`. Raises Overloaded."""
        self._body = b""
        if num_kept:
            self._held.take(num_kept)
            self._num_kept += num_kept

    def end(self) -> None:
        """Free what the request has kept."""
        self._held.give_back(self._num_kept)
        self._num_kept = 0

    def watch(self) -> AbstractAsyncContextManager[object]:
        """Return a context without effect: there is no client that could disconnect."""
        return _unwatched()

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Keep a complete response."""
        self.status, self.response = status, body
        headers = headers or NO_HEADERS
        retry_after = headers.get("retry-after", "")
        self.retry_after_s = int(retry_after) if retry_after.isdecimal() else 0
        self.worker_lost = WORKER_LOST in headers

    async def begin_events(self, headers: Mapping[str, str], source: EventSource) -> None:
        """Raise FieldError: a batch has whole responses alone."""
        raise FieldError("stream", "stream is not supported in a batch; omit it")

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Raise FieldError."""
        raise FieldError("stream", "stream is not supported in a batch; omit it")

    def count_unread(self) -> None:
        """No-op: no output waits for a client."""


@asynccontextmanager
async def _unwatched() -> AsyncIterator[None]:
    yield
