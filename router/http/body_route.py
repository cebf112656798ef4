"""A path that accepts a JSON body: parsed strictly, validated by a model, served on the connection itself."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from baton.engine.errors import EngineError
from baton.router.admission.body_budget import BodyBudget
from baton.router.auth.client import Gate
from baton.router.errors import REQUEST_PANICS, FieldError
from baton.router.http.body_reader import BodyReader, Content, check_size
from baton.router.http.exchange import ClientGone, Exchange
from baton.router.http.headers import RESUMABLE, RESUME, announced_size, is_gzip, is_json, is_resumable
from baton.router.openai.errors import error_response
from baton.router.tracing.recording import Recording
from baton.rpc.status import ServiceError, Unauthenticated

Body = TypeVar("Body", bound=BaseModel)
Read = TypeVar("Read", bound=BaseModel, covariant=True)


@dataclass(frozen=True, slots=True)
class BodyIntake:
    """Components for receiving bodies, shared by all routes."""

    gate: Gate
    budget: BodyBudget
    reader: BodyReader
    max_body_bytes: int
    recording: Recording | None = None  # None: no request is recorded


def openai_error_response(error: Exception, _request_id: str) -> Response:
    """Return the response for an error in OpenAI's shape."""
    return error_response(error)


class BodyFormat(Protocol[Read]):
    """Format of the bodies that a path accepts."""

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise HTTPException (415) unless the headers declare a body of this format."""
        ...

    async def read(self, reader: BodyReader, content: Content, exchange: Exchange) -> Read:
        """Parse a body. Raises what `BodyReader.read` raises."""
        ...


class JsonFormat(Generic[Body]):
    """Bodies of JSON alone."""

    def __init__(self, model: type[Body]) -> None:
        self._model = model

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise HTTPException (415) unless the body is declared as JSON."""
        if not is_json(headers.get("content-type", "")):
            # Browsers let any web page post other types to a server on the user's machine without a CORS preflight.
            text = "the body must be JSON and declared as such: send 'content-type: application/json'"
            raise HTTPException(415, text)

    async def read(self, reader: BodyReader, content: Content, exchange: Exchange) -> Body:
        """Parse a body. Raises what `BodyReader.read` raises."""
        return await reader.read(self._model, content, exchange)


class BodyRoute(Generic[Body]):
    """Handler of the POST requests of one path."""

    def __init__(
        self,
        model: type[Body],
        serve: Callable[[Body, Exchange], Awaitable[None]],
        intake: BodyIntake,
        *,
        error_response: Callable[[Exception, str], Response] = openai_error_response,
        can_resume: bool = True,
        body_format: BodyFormat[Body] | None = None,
        operation: str | None = None,
    ) -> None:
        """`serve` sends the response, or raises before it has sent any of it.

        `error_response`: the path's API's response for an error of the request with this id. `can_resume`: clients may
        resume the response. `body_format`: None: JSON alone. `operation`: name of the requests' traces; None: they have
        none.
        """
        self.model = model
        self._format = body_format or JsonFormat(model)
        self.error_response = error_response
        self._can_resume = can_resume
        self._operation = operation
        self._serve = serve
        self._intake = intake
        self.max_body_bytes = intake.max_body_bytes

    def is_authorized(self, exchange: Exchange) -> bool:
        """Return whether the headers are acceptable. Otherwise `serve` sends the error, and needs no body."""
        try:
            self._begin(exchange)
        except (EngineError, ServiceError, HTTPException) as error:
            exchange.refusal = error
            return False
        return True

    async def serve(self, exchange: Exchange) -> None:
        """Read the body and send the response."""
        recording = self._intake.recording
        if recording is None or self._operation is None or isinstance(exchange.refusal, Unauthenticated):
            await self._read_and_respond(exchange)
            return
        trace = exchange.trace = recording.begin(
            self._operation, exchange.request_id, exchange.headers, exchange.client
        )
        try:
            await self._read_and_respond(exchange)
        finally:
            if trace is not None:
                recording.end(trace)

    async def _read_and_respond(self, exchange: Exchange) -> None:
        """Send the response, or an error."""
        try:
            with REQUEST_PANICS:
                await self._read_and_serve(exchange)
        except ClientGone:  # no response is possible
            if exchange.trace is not None:
                exchange.trace.note_client_gone()
        except Exception as error:
            if exchange.started:
                if exchange.trace is not None:
                    exchange.trace.note_failure(error)
                raise  # a part of the response has been sent: the server closes the connection
            response = self.error_response(error, exchange.request_id)
            if exchange.trace is not None:
                exchange.trace.note_failure(error, response.status_code)
            with suppress(ClientGone):
                await exchange.respond(response.status_code, bytes(response.body), _extra_headers(response))
        finally:
            if exchange.upload is not None:
                exchange.upload.release()

    def _begin(self, exchange: Exchange) -> None:
        headers, intake = exchange.headers, self._intake
        exchange.client = intake.gate.client(headers)
        exchange.client.begin()
        self._format.check(headers)
        if is_resumable(headers) and not self._can_resume:
            raise FieldError(RESUMABLE, f"responses of this path cannot be resumed: omit {RESUMABLE} and {RESUME}")
        is_gzip(headers.get("content-encoding", ""))
        check_size(announced_size(headers), self.max_body_bytes)
        exchange.upload = intake.budget.begin(exchange.client, exchange.address)

    async def _read_and_serve(self, exchange: Exchange) -> None:
        body = await self._read(exchange)
        if exchange.upload is not None:
            exchange.upload.end()  # the route counts its completions from here on
        await self._serve(body, exchange)

    async def _read(self, exchange: Exchange) -> Body:
        content: Content = await exchange.read(self.max_body_bytes)
        reader = self._intake.reader
        if is_gzip(exchange.headers.get("content-encoding", "")):
            num_compressed = len(content)
            content = await reader.gunzip(content, self.max_body_bytes, exchange)
            if exchange.upload is not None:
                exchange.upload.add(len(content) - num_compressed)
        if is_resumable(exchange.headers):
            exchange.resumption = await reader.resumption(content, exchange)
        return await self._format.read(reader, content, exchange)


def _extra_headers(response: Response) -> dict[str, str]:
    """Return the headers except those that every response has."""
    return {name: value for name, value in response.headers.items() if name not in ("content-length", "content-type")}
