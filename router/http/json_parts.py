"""Counts of what a JSON text holds, without parsing it: its parts cost memory and time, far more than text does."""

from dataclasses import dataclass

CHUNK_BYTES = 1 << 18  # counted at once: the interpreter can switch threads between two


@dataclass(slots=True)
class JsonParts:
    """Counts of parts outside of strings."""

    num_objects: int = 0  # lists, objects and their keys
    num_elements: int = 0  # commas


def count_parts(text: bytes | bytearray, max_objects: int, max_elements: int) -> JsonParts:
    """Return the counts, which stop soon after one is over its bound.

    Of a text that is not JSON they are right up to where a parser finds that.
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
