"""The content of a stored response: its input items and the response object, as compressed JSON."""

import asyncio
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from baton.router.responses.items import Json
from baton.rpc.status import Internal

INLINE_BYTES = 1 << 16  # of JSON that is compressed or read on the event loop, in at most some 2 ms
MAX_BYTES = 1 << 26  # of the JSON of one record, more than any request and its response have
LEVEL = 1  # of zlib: higher ones take several times the time and save a tenth
HEAD = struct.Struct(">III")  # bytes of the JSON of the input and of the response, compressed bytes of the input


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


@dataclass(frozen=True, slots=True)
class PackedInput:
    """Compressed input items, as they wait for the response."""

    num_bytes: int  # of their JSON
    content: bytes


def pack(items: Sequence[Json]) -> PackedInput:
    """Compress input items."""
    text = orjson.dumps(items)
    return PackedInput(len(text), zlib.compress(text, LEVEL))


async def encode(packed: PackedInput, response: Json) -> bytes:
    """Return the content of a record."""
    text = orjson.dumps(response)
    is_short = len(text) <= INLINE_BYTES
    compressed = zlib.compress(text, LEVEL) if is_short else await asyncio.to_thread(zlib.compress, text, LEVEL)
    return HEAD.pack(packed.num_bytes, len(text), len(packed.content)) + packed.content + compressed


def json_bytes(content: bytes) -> int:
    """Return the number of bytes of JSON in a record. Raises Internal if it is none."""
    if len(content) < HEAD.size:
        raise _damaged()
    num_input, num_response, _ = HEAD.unpack_from(content)
    if num_input + num_response > MAX_BYTES:
        raise _damaged()
    return int(num_input + num_response)


async def decode(contents: Sequence[bytes]) -> list[StoredResponse]:
    """Return the responses in records, whose sizes the caller has checked. Raises Internal if one is damaged."""
    if sum(map(json_bytes, contents)) <= INLINE_BYTES:
        return list(map(_decode, contents))
    return await asyncio.to_thread(lambda: list(map(_decode, contents)))


def _decode(content: bytes) -> StoredResponse:
    num_input, num_response, num_packed = HEAD.unpack_from(content)
    packed, response = content[HEAD.size : HEAD.size + num_packed], content[HEAD.size + num_packed :]
    try:
        found = StoredResponse(
            orjson.loads(_inflate(packed, num_input)), orjson.loads(_inflate(response, num_response))
        )
        if not isinstance(found.input, list) or not isinstance(found.response["output"], list):
            raise TypeError("no lists of items")
    except (zlib.error, ValueError, TypeError, KeyError) as error:
        raise _damaged() from error
    return found


def _inflate(compressed: bytes, num_bytes: int) -> bytes:
    """Decompress at most the bytes that the head announces."""
    text = zlib.decompressobj().decompress(compressed, num_bytes + 1)
    if len(text) != num_bytes:
        raise ValueError("of another size than announced")
    return text


def _damaged() -> Internal:
    return Internal("a stored response is damaged; delete it, or begin a new conversation")
