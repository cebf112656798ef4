"""Common parts of the calls of all generating services: client, bytes of the message, and errors as statuses."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc.aio import ServicerContext

from baton.router.auth.client import Client
from baton.router.errors import Overloaded
from baton.router.grpc.auth_interceptor import text_metadata
from baton.router.service import RouterService
from baton.rpc.status import message_of, status_of
from baton.settings.names import peer_address

logger = logging.getLogger(__name__)


def client_of(service: RouterService, context: ServicerContext[Any, Any]) -> Client:
    """Return the client of a call. Raises Unauthenticated."""
    return service.gate.client(text_metadata(context.invocation_metadata()))


@contextmanager
def counted(
    service: RouterService, num_bytes: int, context: ServicerContext[Any, Any], client: Client
) -> Iterator[None]:
    """Count a message's bytes, which are kept while its request is served. Raises Overloaded."""
    upload = service.body_budget.begin(client, peer_address(context.peer()))
    try:
        upload.add(num_bytes)
        upload.end()  # from here its completions count instead
        yield
    finally:
        upload.release()


async def abort(context: ServicerContext[Any, Any], error: Exception, request_id: str, text: str | None = None) -> None:
    """End a call with the status of an error. Logs internal errors. `text`: None: the error's."""
    status = status_of(error)
    if status.code is grpc.StatusCode.INTERNAL:
        logger.error("%s failed", request_id, exc_info=error)
    trailers = (("retry-after", str(error.retry_after_s)),) if isinstance(error, Overloaded) else ()
    await context.abort(status.code, message_of(error) if text is None else text, trailers)
