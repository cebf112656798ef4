"""Compressed request bodies (`content-encoding`)."""

import zlib
from gzip import GzipFile
from io import BytesIO

from starlette.exceptions import HTTPException

from baton.router.openai.exchange import check_size

GZIP_NAMES = ("gzip", "x-gzip")  # the second is an alias of the first (RFC 9110, 8.4.1.3)


def is_gzip(content_encoding: str) -> bool:
    """Return whether a body is compressed. Raises HTTPException (415) for any encoding but gzip."""
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return False
    if name in GZIP_NAMES:
        return True
    text = f"content-encoding is {name[:50]!r}, but must be gzip or left out"
    raise HTTPException(415, text, {"accept-encoding": "gzip"})


def gunzip(body: bytes, max_bytes: int) -> bytes:
    """Decompress a body, but never more than the bound: a few bytes may stand for gigabytes.

    Raises HTTPException: 413 for a body that is larger than `max_bytes` decompressed, 400 for one that is not gzip.
    """
    try:
        with GzipFile(fileobj=BytesIO(body)) as file:
            content = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise HTTPException(400, f"the body is not valid gzip, as content-encoding says: {error}") from error
    check_size(len(content), max_bytes)
    return content
