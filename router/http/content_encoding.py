"""Compressed request bodies (`content-encoding`)."""

import zlib

from starlette.exceptions import HTTPException

from baton.router.http.exchange import check_size

GZIP_NAMES = ("gzip", "x-gzip")  # the second is an alias of the first (RFC 9110, 8.4.1.3)
GZIP_FORMAT = zlib.MAX_WBITS | 16  # as zlib selects it
MAX_MEMBERS = 64  # of one body: clients send one, parallel compressors a few


def is_gzip(content_encoding: str) -> bool:
    """Return whether a body is compressed. Raises HTTPException (415) for any encoding but gzip."""
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return False
    if name in GZIP_NAMES:
        return True
    text = f"content-encoding is {name[:50]!r}, but must be gzip or left out"
    raise HTTPException(415, text, {"accept-encoding": "gzip"})


def gunzip(body: bytes | bytearray, max_bytes: int) -> bytes:
    """Decompress a body, but never more than the bound: a few bytes may stand for gigabytes.

    zlib parses the members' headers too: in Python, megabytes of them would take the interpreter from other requests.
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
    return HTTPException(400, f"the body is not valid gzip, as content-encoding says: {reason}")
