"""The input of a batch: a request a line, checked before the first one runs."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

import orjson

from baton.router.batches.record import BatchError
from baton.router.files.disk import Disk

MAX_LINES = 50_000  # as at OpenAI
MAX_ERRORS = 100  # reported
MAX_CUSTOM_ID_CHARS = 512
FIELDS = ("custom_id", "method", "url", "body")
SLICE_S = 0.005  # the checks share the GIL with the event loop and the disk's threads with others: they pause as long


@dataclass(frozen=True, slots=True)
class Line:
    """The place of one request in the input."""

    custom_id: str
    offset: int  # bytes
    length: int  # bytes


@dataclass(slots=True)
class BatchInput:
    """The requests of a file, or what is wrong with them."""

    lines: list[Line] = field(default_factory=list)
    errors: list[BatchError] = field(default_factory=list)


async def read_input(file: BinaryIO, endpoint: str, max_line_bytes: int, disk: Disk) -> BatchInput:
    """Check all lines of a file, and return where each is. Blank lines are ignored. Raises FolderLost."""
    found = BatchInput()
    checks = _check_lines(file, endpoint, max_line_bytes, found)
    while True:
        if not await disk.run_to_end(lambda: _run_slice(checks)):
            return found
        await asyncio.sleep(SLICE_S)


def _run_slice(checks: Iterator[None]) -> bool:
    """Check lines for `SLICE_S`. Return whether more are left."""
    end_s = time.monotonic() + SLICE_S
    return any(time.monotonic() >= end_s for _ in checks)


def _check_lines(file: BinaryIO, endpoint: str, max_line_bytes: int, found: BatchInput) -> Iterator[None]:
    """Add what each line is to `found`, and yield after it."""
    seen = set[str]()
    for number, offset, text in _lines(file, max_line_bytes):
        yield
        if text is not None and not text.strip():
            continue
        error = _too_long(number, max_line_bytes) if text is None else _check(number, text, endpoint, seen)
        if error is not None:
            found.errors.append(error)
        elif text is not None:
            custom_id = orjson.loads(text)["custom_id"]
            seen.add(custom_id)
            found.lines.append(Line(custom_id, offset, len(text)))
        if len(found.lines) > MAX_LINES:
            found.errors.append(
                BatchError("too_many_requests", f"The file has over {MAX_LINES} requests.", None, number)
            )
        if len(found.errors) >= MAX_ERRORS or len(found.lines) > MAX_LINES:
            break
    if not found.lines and not found.errors:
        found.errors.append(BatchError("empty_file", "The file has no requests.", None, None))


def request_body(file: BinaryIO, line: Line) -> dict[str, object]:
    """Return the body of a checked line."""
    file.seek(line.offset)
    body: dict[str, object] = orjson.loads(file.read(line.length))["body"]
    return body


def _lines(file: BinaryIO, max_line_bytes: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield number, offset and text of each line; None: it is too long, and the last one."""
    number = offset = 0
    while text := file.readline(max_line_bytes + 1):
        number += 1
        if len(text) > max_line_bytes:
            yield number, offset, None
            return
        yield number, offset, text
        offset += len(text)


def _too_long(number: int, max_line_bytes: int) -> BatchError:
    return BatchError("line_too_long", f"This line has over {max_line_bytes} bytes.", None, number)


def _check(number: int, text: bytes, endpoint: str, seen: set[str]) -> BatchError | None:
    """Return the first problem of a line; None if it is valid."""

    def error(code: str, message: str, param: str | None = None) -> BatchError:
        return BatchError(code, message, param, number)

    try:
        request = orjson.loads(text)
    except orjson.JSONDecodeError:
        return error("invalid_json_line", "This line is not parseable as valid JSON.")
    if not isinstance(request, dict):
        return error("invalid_json_line", "This line is no JSON object.")
    for name in FIELDS:
        if name not in request:
            return error("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    if unknown := next((name for name in request if name not in FIELDS), None):
        return error("unknown_parameter", f"Unknown parameter: '{unknown[:64]}'.", unknown[:64])
    custom_id = request["custom_id"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        text_rule = f"must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters"
        return error("invalid_custom_id", f"The custom_id {text_rule}.", "custom_id")
    if custom_id in seen:
        return error("duplicate_custom_id", f"The custom_id '{custom_id}' is used by an earlier line.", "custom_id")
    if request["method"] != "POST":
        return error("invalid_method", "The method must be POST.", "method")
    if request["url"] != endpoint:
        return error("mismatched_url", f"The url must be the batch's endpoint, {endpoint}.", "url")
    if not isinstance(request["body"], dict):
        return error("invalid_body", "The body must be a JSON object.", "body")
    return None
