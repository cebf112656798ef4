"""The number of parts of a JSON text, counted without parsing it: each becomes an object in memory."""

import re
from collections import Counter
from dataclasses import dataclass

import orjson

CHUNK_BYTES = 1 << 18  # counted at once; the interpreter can switch threads between chunks

# The parser holds the GIL for a whole body: within these limits for at most some 20 ms.
MAX_OBJECTS = 1 << 17
MAX_ELEMENTS = 1 << 19

OBJECTS, ELEMENTS = frozenset({b"[", b"{", b":"}), frozenset({b","})  # tokens of which `JsonParts` has the numbers
OPENING, CLOSING = frozenset({b"[", b"{"}), frozenset({b"]", b"}"})
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}:,]', re.DOTALL)  # a string may end with the text
MAX_SCANNED_BYTES = 1 << 20  # read in about 0.1 s; a string of that many in 5 ms, during which no other thread runs


@dataclass(slots=True)
class JsonParts:
    """Numbers of JSON tokens outside of strings."""

    num_objects: int = 0  # lists, objects and their keys
    num_elements: int = 0  # commas


def count_parts(text: bytes | bytearray, max_objects: int, max_elements: int) -> JsonParts:
    """Return the counts; counting stops soon after one exceeds its bound.

    For a text that is not JSON they are correct up to the first error.
    """
    parts = JsonParts()
    is_in_string = False
    start = 0
    while start < len(text) and parts.num_objects <= max_objects and parts.num_elements <= max_elements:
        end = min(len(text), start + CHUNK_BYTES)
        chunk = text[start:end]
        if (len(chunk) - len(chunk.rstrip(b"\\"))) % 2:  # an escape begins here
            chunk += text[end : end + 1]
            end += 1
        start = end
        segments = chunk.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')
        outside = b"".join(segments[is_in_string::2])
        is_in_string ^= len(segments) % 2 == 0
        parts.num_objects += sum(map(outside.count, (b"[", b"{", b":")))
        parts.num_elements += outside.count(b",")
    return parts


def fullest_field(text: bytes | bytearray, tokens: frozenset[bytes], limit: int) -> str | None:
    """Return the field of a JSON object with most of its tokens of these kinds; None if none clearly has.

    Reads the beginning of a text with over `limit` of these tokens, up to the limit.
    """
    counts = Counter[bytes]()
    depth, num_tokens, field, last = 0, 0, b"", b""
    for match in TOKEN.finditer(text, 0, MAX_SCANNED_BYTES):
        token = match[0]
        if token == b":" and depth == 1:
            field = last
        depth += (token in OPENING) - (token in CLOSING)
        last = token
        if token in tokens:
            counts[field] += 1
            num_tokens += 1
            if num_tokens > limit:
                break
    field, number = max(counts.items(), key=lambda each: each[1], default=(b"", 0))
    if not field or number <= max(num_tokens // 2, limit // 8):
        return None
    try:
        return str(orjson.loads(field))
    except orjson.JSONDecodeError:
        return None
