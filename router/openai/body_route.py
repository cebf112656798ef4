"""A path that takes a JSON body: read strictly, checked by a model, answered on the server's interface itself."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.engine.errors import InvalidRequest
from baton.router.client import ANYBODY
from baton.router.gate import Gate
from baton.router.openai.content_encoding import gunzip, is_gzip
from baton.router.openai.disconnect import ClientGone
from baton.router.openai.errors import error_response
from baton.router.openai.exchange import AsgiExchange, Exchange
from baton.router.openai.invalid_body import invalid_body
from baton.router.panic import REQUEST_PANICS
from baton.rpc.status import Unauthenticated

Body = TypeVar("Body", bound=BaseModel)

# Lists, objects and their keys take far longer to build than texts of the same bytes, and everybody waits meanwhile.
# Those within texts count too: so many are in megabytes of source code, more than any context holds.
MAX_PARTS = 1 << 18


class BodyRoute(Generic[Body]):
    """An ASGI application for the POST requests of one path; errors become OpenAI-shaped answers."""

    def __init__(
        self, model: type[Body], serve: Callable[[Body, Exchange], Awaitable[None]], max_body_bytes: int, gate: Gate
    ) -> None:
        """`serve` answers the exchange, or raises before it has started the answer."""
        self.model = model
        self._serve = serve
        self.max_body_bytes = max_body_bytes
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request over ASGI."""
        await self.serve(AsgiExchange(scope, receive, send))

    def lets_in(self, exchange: Exchange) -> bool:
        """Whether who asks may ask, by the head alone; if not, `serve` says so, and needs no body for it."""
        try:
            exchange.client = self._gate.client(exchange.headers)
        except Unauthenticated:
            return False
        return True

    async def serve(self, exchange: Exchange) -> None:
        """Reads the body and answers."""
        try:
            with REQUEST_PANICS:
                await self._read_and_serve(exchange)
        except ClientGone:
            return  # nobody is left to answer
        except Exception as error:
            if exchange.started:
                raise  # half an answer is out: the server breaks the connection off
            response = error_response(error)
            await exchange.answer(response.status_code, bytes(response.body), _extra_headers(response))

    async def _read_and_serve(self, exchange: Exchange) -> None:
        if exchange.client is ANYBODY:
            exchange.client = self._gate.client(exchange.headers)
        exchange.client.begin()
        if not says_json(exchange.headers.get("content-type", "")):
            # Any web page may post other types to a server on its reader's machine, without asking it first.
            text = "the body must be JSON and said to be: send 'content-type: application/json'"
            raise HTTPException(415, text)
        is_compressed = is_gzip(exchange.headers.get("content-encoding", ""))
        content = await exchange.read(self.max_body_bytes)
        if is_compressed:  # in a thread: a megabyte may stand for a gigabyte, and other clients wait for their tokens
            content = await asyncio.to_thread(gunzip, content, self.max_body_bytes)
        await self._serve(read_body(self.model, content), exchange)


def read_body(model: type[Body], body: bytes) -> Body:
    """The body as the model has it: UTF-8, no NaN, no half surrogate pairs (no tokenizer takes them).

    Raises InvalidRequest, or HTTPException (413) for one of too many lists, objects and keys.
    """
    if len(body) > MAX_PARTS and sum(map(body.count, (b"[", b"{", b":"))) > MAX_PARTS:
        raise HTTPException(413, f"the body has over {MAX_PARTS} opening brackets and colons")
    if not body:
        raise InvalidRequest("the body is empty; send a JSON object")
    try:
        return model.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest("the body is no valid JSON") from error
    except ValidationError as error:
        raise invalid_body(model, error) from error


def says_json(content_type: str) -> bool:
    """Whether a content type is JSON's."""
    if content_type == "application/json":
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _extra_headers(response: Response) -> dict[str, str]:
    """The headers beside those that every answer has."""
    return {name: value for name, value in response.headers.items() if name not in ("content-length", "content-type")}
