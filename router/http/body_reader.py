"""Parsing of request bodies without delaying other requests."""

import asyncio
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from baton.engine.errors import InvalidRequest
from baton.router.admission.turns import Turns
from baton.router.errors import FieldError
from baton.router.http.exchange import ClientGone, Exchange
from baton.router.http.headers import read_resumption
from baton.router.http.json_parts import (
    ELEMENTS,
    MAX_ELEMENTS,
    MAX_OBJECTS,
    OBJECTS,
    JsonParts,
    count_parts,
    fullest_field,
)
from baton.router.inline_work import InlineWork
from baton.router.openai.invalid_body import MAX_NAME_CHARS, invalid_body
from baton.router.resumption.resumption import Resumption


def check_size(num_bytes: int, max_bytes: int) -> None:
    """Raise HTTPException (413) for a body that is too large."""
    if num_bytes > max_bytes:
        raise HTTPException(413, f"the body is over the limit of {max_bytes} bytes")


GZIP_FORMAT = zlib.MAX_WBITS | 16  # as zlib selects it
MAX_MEMBERS = 64  # of one body: clients send one, parallel compressors a few


def gunzip(body: bytes | bytearray, max_bytes: int) -> bytes:
    """Decompress a body up to the bound: a few bytes may expand to gigabytes.

    zlib also parses the headers of the members: in Python, megabytes of them would block other requests.
    Raises HTTPException: 413 for a body that is larger than `max_bytes` decompressed, 400 for one that is not gzip.
    """
    content = bytearray()
    for _ in range(MAX_MEMBERS):
        member = zlib.decompressobj(GZIP_FORMAT)
        try:
            content += member.decompress(body, max_bytes + 1 - len(content))
        except zlib.error as error:
            raise _invalid(str(error)) from error
        check_size(len(content), max_bytes)
        if not member.eof:
            raise _invalid("it ends too early")
        body = member.unused_data
        if not body:
            return bytes(content)
    raise _invalid(f"it has over {MAX_MEMBERS} members")


def _invalid(reason: str) -> HTTPException:
    return HTTPException(400, f"content-encoding is gzip, but the body is not valid gzip: {reason}")


Body = TypeVar("Body", bound=BaseModel)
Content = bytes | bytearray
T = TypeVar("T")

# Bodies within these limits take at most about a millisecond and are parsed on the event loop.
LIGHT_BYTES = 64 << 10
LIGHT_PARTS = 256  # objects, lists and keys
LIGHT_QUOTES = 1024  # of strings, each of which may become an object; numbers are a hundred times as fast
LONG_BYTES = 1 << 20  # bodies from this size on have a separate thread
LONG_PARTS = 8192
MAX_NESTING, TOO_DEEP = 1024, "depth limit exceeded"  # the parser's limit, and its message


class BodyReader:
    """Parser of bodies. Owns two threads for bodies that would delay the event loop, one of them for long ones."""

    def __init__(self, context_len: Callable[[], int], clock: Callable[[], float] = time.perf_counter) -> None:
        """`context_len`: returns the maximum tokens of a prompt, each of which may be an element of a list."""
        self._context_len = context_len
        self._inline = InlineWork(clock)
        self._lane = _Lane("bodies")
        self._long_lane = _Lane("bodies-long")

    def close(self) -> None:
        """End the threads."""
        self._lane.close()
        self._long_lane.close()

    async def read(self, model: type[Body], content: Content, exchange: Exchange) -> Body:
        """Parse a body. Raises InvalidRequest or ClientGone."""
        if is_light(content):
            if self._inline.is_used_up:
                return await self._lane.run(exchange, lambda: read_body(model, content))
            return self._inline.run(lambda: read_body(model, content))
        lane = self._lane if len(content) < LONG_BYTES else self._long_lane
        max_elements = max(MAX_ELEMENTS, self._context_len())
        parts = await lane.run(exchange, lambda: checked_parts(content, max_elements))
        if parts.num_objects + parts.num_elements > LONG_PARTS:
            lane = self._long_lane
        return await lane.run(exchange, lambda: read_body(model, content))

    async def convert(self, exchange: Exchange, num_bytes: int, work: Callable[[], T]) -> T:
        """Return the result of `work` on `num_bytes` of JSON, run where a body of that size is parsed.

        Raises ClientGone, and what `work` raises.
        """
        if num_bytes > LIGHT_BYTES or self._inline.is_used_up:
            lane = self._lane if num_bytes < LONG_BYTES else self._long_lane
            return await lane.run(exchange, work)
        return self._inline.run(work)

    async def gunzip(self, content: Content, max_bytes: int, exchange: Exchange) -> bytes:
        """Return the decompressed body. Raises ClientGone, and HTTPException like the function `gunzip`."""
        return await self._lane.run(exchange, lambda: gunzip(content, max_bytes))

    async def resumption(self, content: Content, exchange: Exchange) -> Resumption | None:
        """Call `read_resumption`, which hashes the body. Raises FieldError or ClientGone."""
        headers, client = exchange.headers, exchange.client
        if len(content) <= LIGHT_BYTES:
            return read_resumption(headers, client, content)
        return await self._lane.run(exchange, lambda: read_resumption(headers, client, content))


class _Lane:
    """A thread that clients use in turn. After each job it sleeps for as long as the job took: it shares the GIL with
    the event loop, which thus gets at least half of the time, however many bodies arrive.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._turns = Turns()
        self._sleeps_until_s = 0.0

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    async def run(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """Return the result of `work`. Raises ClientGone if the client has disconnected in the meantime."""
        client = exchange.address if exchange.upload is None else exchange.upload.holder
        async with self._turns.turn(client):
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, exchange, work)

    def _work(self, exchange: Exchange, work: Callable[[], T]) -> T:
        if exchange.disconnected:
            raise ClientGone
        time.sleep(max(0.0, self._sleeps_until_s - time.monotonic()))
        begun_s = time.thread_time()
        try:
            return work()
        finally:
            self._sleeps_until_s = time.monotonic() + time.thread_time() - begun_s


def is_light(content: Content) -> bool:
    """Return whether parsing a body takes less time than handing it to a thread would."""
    if len(content) > LIGHT_BYTES or content.count(b'"') > LIGHT_QUOTES:
        return False
    return sum(map(content.count, (b"{", b"[", b":"))) <= LIGHT_PARTS


def checked_parts(content: Content, max_elements: int) -> JsonParts:
    """Return the number of parts. Raises InvalidRequest for too many, which names the field with most of them."""
    parts = count_parts(content, MAX_OBJECTS, max_elements)
    if parts.num_objects > MAX_OBJECTS:
        raise _too_many(content, OBJECTS, MAX_OBJECTS, "lists, objects and keys")
    if parts.num_elements > max_elements:
        raise _too_many(content, ELEMENTS, max_elements, "elements of lists and objects")
    return parts


def _too_many(content: Content, tokens: frozenset[bytes], limit: int, what: str) -> InvalidRequest:
    text, field = f"the body has over {limit} {what}", fullest_field(content, tokens, limit)
    if field is None:
        return InvalidRequest(text)
    name = field[:MAX_NAME_CHARS]
    return FieldError(name, f"{name}: {text}, most of them in this field; send fewer")


def read_body(model: type[Body], content: Content) -> Body:
    """Parse and validate a body: UTF-8, no NaN, no lone surrogates (tokenizers reject them).

    Raises InvalidRequest.
    """
    if not content:
        raise InvalidRequest("the body is empty; send a JSON object")
    try:
        return model.model_validate(orjson.loads(content))
    except orjson.JSONDecodeError as error:
        is_deep = error.msg == TOO_DEEP
        text = f"is nested over {MAX_NESTING} levels deep" if is_deep else "is no valid JSON"
        raise InvalidRequest(f"the body {text}") from error
    except ValidationError as error:
        raise invalid_body(model, error) from error
