"""Parser of multipart/form-data (RFC 7578) that keeps no more than one chunk and one part's headers in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message

from baton.router.errors import FieldError

MAX_BOUNDARY_CHARS = 70  # RFC 2046
MAX_CONTENT_TYPE_CHARS = 256
MAX_PART_HEAD_BYTES = 8 << 10
MAX_SEMICOLONS = 16  # of a part's headers: `email.message` takes quadratic time for more of them
MAX_PARTS = 16
MAX_OUTSIDE_BYTES = 64 << 10  # in front of the first part and after the last one


@dataclass(frozen=True, slots=True)
class PartBegin:
    """A part begins."""

    name: str
    filename: str | None  # None: a field


@dataclass(frozen=True, slots=True)
class PartData:
    """Some content of the last part."""

    data: bytes


def boundary_of(content_type: str) -> bytes:
    """Return the boundary that a content type declares. Raises FieldError."""
    if len(content_type) > MAX_CONTENT_TYPE_CHARS:
        raise FieldError("file", f"the content-type of the body is over the limit of {MAX_CONTENT_TYPE_CHARS} bytes")
    message = Message()
    message["content-type"] = content_type
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise FieldError("file", "the body must be multipart/form-data with the fields purpose and file")
    if not 0 < len(boundary) <= MAX_BOUNDARY_CHARS or not boundary.isascii():
        raise FieldError("file", f"the boundary of the body must have 1 to {MAX_BOUNDARY_CHARS} ASCII characters")
    return boundary.encode()


class MultipartParser:
    """Parser of one body."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first delimiter may lack its line break
        self._num_parts = self._num_outside = 0
        self._state = self._preamble
        self.is_complete = False

    def feed(self, data: bytes) -> Iterator[PartBegin | PartData]:
        """Yield what the data adds. Raises FieldError for a body that is malformed or has too many parts."""
        self._buffer += data
        while (event := self._state()) is not None:
            if not isinstance(event, PartData) or event.data:
                yield event

    def _preamble(self) -> PartBegin | PartData | None:
        found, skipped = self._until_delimiter()
        self._skip(skipped)
        if not found:
            return None
        self._state = self._after_delimiter
        return self._after_delimiter()

    def _after_delimiter(self) -> PartBegin | PartData | None:
        if len(self._buffer) < 2:
            return None
        end, self._buffer = bytes(self._buffer[:2]), self._buffer[2:]
        if end == b"--":
            self.is_complete = True
            self._state = self._epilogue
        elif end == b"\r\n":
            self._num_parts += 1
            if self._num_parts > MAX_PARTS:
                raise FieldError("file", f"the body has over {MAX_PARTS} parts")
            self._state = self._head
        else:
            raise FieldError("file", "the body is no valid multipart/form-data: text follows a boundary")
        return self._state()

    def _head(self) -> PartBegin | PartData | None:
        end = self._buffer.find(b"\r\n\r\n")
        if max(end, len(self._buffer) if end < 0 else 0) > MAX_PART_HEAD_BYTES:
            raise FieldError("file", f"the headers of a part are over the limit of {MAX_PART_HEAD_BYTES} bytes")
        if end < 0:
            return None
        head, self._buffer = bytes(self._buffer[:end]), self._buffer[end + 4 :]
        self._state = self._content
        return _begin(head)

    def _content(self) -> PartBegin | PartData | None:
        found, data = self._until_delimiter()
        if found:
            self._state = self._after_delimiter
        return PartData(data) if found or data else None

    def _epilogue(self) -> None:
        self._skip(self._buffer)
        self._buffer.clear()

    def _skip(self, data: bytes | bytearray) -> None:
        self._num_outside += len(data)
        if self._num_outside > MAX_OUTSIDE_BYTES:
            raise FieldError("file", f"the body has over {MAX_OUTSIDE_BYTES} bytes outside of its parts")

    def _until_delimiter(self) -> tuple[bool, bytes]:
        """Remove what precedes the next delimiter, and that delimiter; return whether there is one."""
        at = self._buffer.find(self._delimiter)
        end = at if at >= 0 else max(0, len(self._buffer) - len(self._delimiter) + 1)
        data = bytes(self._buffer[:end])
        del self._buffer[: end + len(self._delimiter) if at >= 0 else end]
        return at >= 0, data


def _begin(head: bytes) -> PartBegin:
    if head.count(b";") > MAX_SEMICOLONS:
        raise FieldError("file", f"the headers of a part have over {MAX_SEMICOLONS} semicolons; rename the file")
    message = Message()
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            message["content-disposition"] = value.strip().decode("utf-8", "replace")
    field = message.get_param("name", header="content-disposition")
    if message.get_content_disposition() != "form-data" or not isinstance(field, str):
        raise FieldError("file", "each part of the body needs content-disposition: form-data with a name")
    try:
        filename = message.get_filename()  # decoded by any codec that the client names
        (filename or "").encode()
    except (ArithmeticError, LookupError, ValueError) as error:
        raise FieldError("file", "the filename of a part cannot be decoded") from error
    return PartBegin(field, filename)
