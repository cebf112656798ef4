"""The content of a stored response: its input items and the response object, as compressed JSON."""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from baton.router.responses.items import Json
from baton.rpc.status import Internal

MAX_JSON_BYTES = 1 << 26  # of one response
INLINE_BYTES = 1 << 16  # of JSON that is compressed on the event loop, in at most some 2 ms
LEVEL = 1  # of zlib: higher ones take several times the time and save a tenth


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response and what was new in its request."""

    input: Sequence[Json]  # items, with ids
    response: Json  # the response object

    @property
    def output(self) -> Sequence[Json]:
        """Output items."""
        output = self.response["output"]
        assert isinstance(output, list)
        return output

    @property
    def items(self) -> Sequence[Json]:
        """Input items and output items."""
        return (*self.input, *self.output)


async def encode(input_json: bytes, response: Json) -> bytes:
    """Return the content of a record. `input_json`: the input items."""
    text = orjson.dumps({"input": orjson.Fragment(input_json), "response": response})
    if len(text) <= INLINE_BYTES:
        return zlib.compress(text, LEVEL)
    return await asyncio.to_thread(zlib.compress, text, LEVEL)


def decode(content: bytes) -> tuple[StoredResponse, int]:
    """Return the response in a record, and the bytes of its JSON. Raises Internal if it is none, or too large."""
    try:
        decompressor = zlib.decompressobj()
        text = decompressor.decompress(content, MAX_JSON_BYTES)
        if not decompressor.eof:
            raise ValueError("incomplete or too large")
        stored = orjson.loads(text)
        found = StoredResponse(stored["input"], stored["response"])
        if not isinstance(found.input, list) or not isinstance(found.response["output"], list):
            raise TypeError("no lists of items")
    except (zlib.error, ValueError, TypeError, KeyError) as error:
        raise Internal("a stored response is damaged; delete it, or begin a new conversation") from error
    return found, len(text)
