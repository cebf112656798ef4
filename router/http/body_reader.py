"""Bodies as their models have them, read without making other requests wait."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from baton.engine.errors import InvalidRequest
from baton.router.admission.turns import Turns
from baton.router.http.content_encoding import gunzip
from baton.router.http.disconnect import ClientGone
from baton.router.http.exchange import Exchange
from baton.router.http.json_parts import JsonParts, count_parts
from baton.router.openai.invalid_body import invalid_body

Body = TypeVar("Body", bound=BaseModel)
Content = bytes | bytearray
T = TypeVar("T")

SMALL_BYTES = 4 << 10
LIGHT_BYTES = 64 << 10
LIGHT_PARTS = 256  # braces and colons of a body that is read at once: fewer than take a millisecond
LONG_BYTES = 1 << 20  # from which on a body waits for its like, and not before others
LONG_PARTS = 8192

# The parser holds the interpreter for a whole body: these take it some 20 ms at most.
MAX_OBJECTS = 1 << 17
MAX_ELEMENTS = 1 << 19


class BodyReader:
    """Owns the threads that read large bodies, one for those that take long."""

    def __init__(self, context_len: Callable[[], int]) -> None:
        """`context_len`: tokens that a prompt may have, each an element of a list."""
        self._context_len = context_len
        self._lane = _Lane("bodies")
        self._long_lane = _Lane("bodies-long")

    def close(self) -> None:
        """End the threads."""
        self._lane.close()
        self._long_lane.close()

    async def read(self, model: type[Body], content: Content, exchange: Exchange) -> Body:
        """Return a body that is not light. Raises InvalidRequest, ClientGone, or HTTPException (413) for too many
        parts.
        """
        lane = self._lane if len(content) < LONG_BYTES else self._long_lane
        max_elements = max(MAX_ELEMENTS, self._context_len())
        parts = await lane.run(exchange, lambda: count_parts(content, MAX_OBJECTS, max_elements))
        check_parts(parts, max_elements)
        if parts.num_objects + parts.num_elements > LONG_PARTS:
            lane = self._long_lane
        return await lane.run(exchange, lambda: read_body(model, content))

    async def gunzip(self, content: Content, max_bytes: int, exchange: Exchange) -> bytes:
        """Return the decompressed body. Raises ClientGone, and HTTPException as `content_encoding.gunzip`."""
        return await self._lane.run(exchange, lambda: gunzip(content, max_bytes))


class _Lane:
    """A thread that clients use in turn. It rests after each piece of work for as long as it took: it shares the
    interpreter with the event loop, which has at least half of it however many bodies come.
    """

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._turns = Turns()
        self._rests_until_s = 0.0

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)

    async def run(self, exchange: Exchange, work: Callable[[], T]) -> T:
        """Return the result of work for a request. Raises ClientGone if its client left meanwhile."""
        client = exchange.address if exchange.upload is None else exchange.upload.holder
        async with self._turns.turn(client):
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, exchange, work)

    def _work(self, exchange: Exchange, work: Callable[[], T]) -> T:
        if exchange.disconnected:
            raise ClientGone
        time.sleep(max(0.0, self._rests_until_s - time.monotonic()))
        begun_s = time.thread_time()
        try:
            return work()
        finally:
            self._rests_until_s = time.monotonic() + time.thread_time() - begun_s


def is_light(content: Content) -> bool:
    """Return whether a body takes so little time that a thread is not worth its own."""
    if len(content) <= SMALL_BYTES:
        return True
    return len(content) <= LIGHT_BYTES and content.count(b"{") + content.count(b":") <= LIGHT_PARTS


def check_parts(parts: JsonParts, max_elements: int) -> None:
    """Raises HTTPException (413)."""
    if parts.num_objects > MAX_OBJECTS:
        raise HTTPException(413, f"the body has over {MAX_OBJECTS} lists, objects and keys")
    if parts.num_elements > max_elements:
        raise HTTPException(413, f"the body has over {max_elements} elements of lists and objects")


def read_body(model: type[Body], content: Content) -> Body:
    """Return the body as the model has it: UTF-8, no NaN, no half surrogate pairs (no tokenizer takes them).

    Raises InvalidRequest.
    """
    if not content:
        raise InvalidRequest("the body is empty; send a JSON object")
    try:
        return model.model_validate(orjson.loads(content))
    except orjson.JSONDecodeError as error:
        raise InvalidRequest("the body is no valid JSON") from error
    except ValidationError as error:
        raise invalid_body(model, error) from error
