"""Common parts of the calls of all generating services: client, bytes of the message, and errors as statuses."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc.aio import ServicerContext

from baton.process.request_scope import enter_request
from baton.router.auth.client import Client
from baton.router.errors import Overloaded
from baton.router.grpc.auth_interceptor import text_metadata
from baton.router.service import RouterService
from baton.router.tracing.request_trace import RequestTrace
from baton.rpc.status import message_of, status_of
from baton.settings.names import is_name, peer_address

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


@contextmanager
def traced(
    service: RouterService, operation: str, request_id: str, context: ServicerContext[Any, Any], client: Client
) -> Iterator[RequestTrace | None]:
    """Name a call's request in the log, and record the call during a `with` block if it is to be recorded.

    An invalid id is neither named nor recorded.
    """
    recording = service.recording
    trace = None
    known_id = request_id if is_name(request_id) else ""  # the call ends with an error
    enter_request(known_id)
    if recording is not None:
        trace = recording.begin(operation, known_id, text_metadata(context.invocation_metadata()), client)
    if recording is None or trace is None:
        yield None
        return
    try:
        yield trace
    except Exception as error:
        trace.note_failure(error, status_of(error).code.name)
        raise
    except BaseException:
        trace.note_client_gone()
        raise
    finally:
        recording.end(trace)


async def abort(context: ServicerContext[Any, Any], error: Exception, request_id: str, text: str | None = None) -> None:
    """End a call with the status of an error. Logs internal errors. `text`: None: the error's."""
    status = status_of(error)
    if status.code is grpc.StatusCode.INTERNAL:
        logger.error("%s failed", request_id, exc_info=error)
    trailers = (("retry-after", str(error.retry_after_s)),) if isinstance(error, Overloaded) else ()
    await context.abort(status.code, message_of(error) if text is None else text, trailers)
