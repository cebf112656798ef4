"""The number of parts of a JSON text, counted without parsing it: each becomes an object in memory."""

from dataclasses import dataclass

CHUNK_BYTES = 1 << 18  # counted at once; the interpreter can switch threads between chunks

# The parser holds the GIL for a whole body: within these limits for at most some 20 ms.
MAX_OBJECTS = 1 << 17
MAX_ELEMENTS = 1 << 19


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
