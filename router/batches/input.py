"""The input of a batch: a request a line, checked before the first one runs."""

import asyncio
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, TypeVar

import orjson

from baton.router.batches.record import BatchError
from baton.router.files.disk import Disk
from baton.router.http.json_parts import MAX_ELEMENTS, MAX_OBJECTS, count_parts

MAX_LINES = 50_000  # as at OpenAI
MAX_ERRORS = 100  # reported
MAX_CUSTOM_ID_CHARS = 512
MAX_SHOWN_CHARS = 64  # of a name in an error
FIELDS = ("custom_id", "method", "url", "body")
SLICE_S = 0.005  # of checks at once
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)  # a string or a bracket of a JSON text

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """The place of one request in the input, and what the router needs to start it."""

    custom_id: str
    offset: int  # bytes
    length: int  # bytes
    num_completions: int  # 0: an embedding request; 1: also of a request with more than may be
    stream: bool
    model: str = ""  # name of the served model; empty: no model runs the request, which gets an error


@dataclass(slots=True)
class BatchInput:
    """The requests of a file, or what is wrong with them."""

    lines: list[Line] = field(default_factory=list)
    errors: list[BatchError] = field(default_factory=list)


class InputReader:
    """Reader of the inputs of all batches, one call at a time.

    Parsing holds the GIL, which the event loop needs, so the reader pauses after it for as long as it took.
    """

    def __init__(
        self,
        disk: Disk,
        max_line_bytes: int,
        context_len: Callable[[], int],
        models: Collection[str] = (),
        *,
        max_completions: int,
        adapted_model: Callable[[str], str] = lambda _name: "",
    ) -> None:
        """`context_len`: returns the maximum tokens of a prompt, each of which may be an element of a list.

        `models`: names of the served models. `max_completions`: of one request; one with more gets an error.
        `adapted_model`: returns the model of the adapter with a name; empty: there is none. Called in a thread.
        """
        self._disk = disk
        self._max_line_bytes = max_line_bytes
        self._context_len = context_len
        self._models = frozenset(models)
        self._max_completions = max_completions
        self._adapted_model = adapted_model
        self._turn = asyncio.Lock()

    async def read(self, file: BinaryIO, endpoint: str) -> BatchInput:
        """Check all lines of a file, and return where each is. Blank lines are ignored. Raises FolderLost."""
        found = BatchInput()
        rules = _Rules(
            endpoint,
            self._max_line_bytes,
            self._context_len(),
            self._models,
            self._max_completions,
            self._adapted_model,
        )
        checks = _check_lines(file, rules, found)
        while await self._paced(lambda: _run_slice(checks)):
            pass
        return found

    async def body(self, file: BinaryIO, line: Line) -> bytes:
        """Return the body of a checked line. Raises FolderLost."""
        return await self._paced(partial(_body, file, line))

    async def _paced(self, work: Callable[[], T]) -> T:
        async with self._turn:
            result, worked_s = await self._disk.run_to_end(lambda: _timed(work))
            if worked_s >= SLICE_S:
                await asyncio.sleep(worked_s)
            return result


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    begun_s = time.thread_time()
    return work(), time.thread_time() - begun_s


def _run_slice(checks: Iterator[None]) -> bool:
    """Check lines for `SLICE_S`. Return whether more are left."""
    end_s = time.monotonic() + SLICE_S
    return any(time.monotonic() >= end_s for _ in checks)


def _body(file: BinaryIO, line: Line) -> bytes:
    file.seek(line.offset)
    text = file.read(line.length)
    try:
        return orjson.dumps(orjson.loads(text)["body"])
    except TypeError:
        return _raw_body(text)


def _raw_body(text: bytes) -> bytes:
    """Return the body of a checked line as the client wrote it: orjson parses more levels than it can write."""
    depth, start, name, body = 0, 0, "", b""
    for token in TOKEN.finditer(text):
        match token[0]:
            case b"[" | b"{":
                depth += 1
                start = token.start() if depth == 2 else start
            case b"]" | b"}":
                depth -= 1
                if depth == 1 and name == "body":
                    body = text[start : token.end()]  # the last one, if the key is repeated
            case string if depth == 1:
                name = orjson.loads(string)  # a key or its value; in front of a bracket always a key
    return body


@dataclass(frozen=True, slots=True)
class _Rules:
    """Bounds on the lines of a batch."""

    endpoint: str
    max_line_bytes: int
    max_elements: int
    models: frozenset[str]
    max_completions: int
    adapted_model: Callable[[str], str]

    def model(self, body: Mapping[str, object]) -> str:
        """Return the name of the model that runs a request; empty if none does. It need not name a single one."""
        name = body.get("model")
        if not name and len(self.models) == 1:
            (name,) = self.models
        if not isinstance(name, str):
            return ""
        return sys.intern(name if name in self.models else self.adapted_model(name))

    def num_completions(self, body: Mapping[str, object]) -> int:
        """Return the completions that a request needs room for; it may be invalid."""
        num = num_completions(self.endpoint, body)
        return num if num <= self.max_completions else 1


def _check_lines(file: BinaryIO, rules: _Rules, found: BatchInput) -> Iterator[None]:
    """Add what each line is to `found`, and yield after it."""
    seen = set[str]()
    for number, offset, text in _lines(file, rules.max_line_bytes):
        yield
        if len(text) <= rules.max_line_bytes and text.isspace():
            continue
        line = _check(number, offset, text, rules, seen)
        if isinstance(line, BatchError):
            found.errors.append(line)
        else:
            seen.add(line.custom_id)
            found.lines.append(line)
        if len(found.lines) > MAX_LINES:
            found.errors.append(
                BatchError("too_many_requests", f"The file has over {MAX_LINES} requests.", None, number)
            )
        if len(found.errors) >= MAX_ERRORS or len(found.lines) > MAX_LINES:
            break
    if not found.lines and not found.errors:
        found.errors.append(BatchError("empty_file", "The file has no requests.", None, None))


def _lines(file: BinaryIO, max_line_bytes: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield number, offset and text of each line. The last one may be too long, and is incomplete then."""
    number = offset = 0
    while text := file.readline(max_line_bytes + 1):
        number += 1
        yield number, offset, text
        if len(text) > max_line_bytes:
            return
        offset += len(text)


def _check(number: int, offset: int, text: bytes, rules: _Rules, seen: set[str]) -> Line | BatchError:
    """Return the line, or the first problem of it."""

    def error(code: str, message: str, param: str | None = None) -> BatchError:
        return BatchError(code, message, param, number)

    if len(text) > rules.max_line_bytes:
        return error("line_too_long", f"This line has over {rules.max_line_bytes} bytes.")
    max_elements = max(MAX_ELEMENTS, rules.max_elements)
    parts = count_parts(text, MAX_OBJECTS, max_elements)
    if parts.num_objects > MAX_OBJECTS or parts.num_elements > max_elements:
        what = f"{MAX_OBJECTS} lists, objects and keys, or over {max_elements} elements of them"
        return error("line_too_complex", f"This line has over {what}.")
    try:
        request = orjson.loads(text)
    except orjson.JSONDecodeError:
        return error("invalid_json_line", "This line is not parseable as valid JSON.")
    if not isinstance(request, dict):
        return error("invalid_json_line", "This line is no JSON object.")
    for name in FIELDS:
        if name not in request:
            return error("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    unknown = next((name[:MAX_SHOWN_CHARS] for name in request if name not in FIELDS), None)
    if unknown is not None:
        return error("unknown_parameter", f"Unknown parameter: '{unknown}'.", unknown)
    custom_id, body = request["custom_id"], request["body"]
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID_CHARS:
        text_rule = f"must be a string of 1 to {MAX_CUSTOM_ID_CHARS} characters"
        return error("invalid_custom_id", f"The custom_id {text_rule}.", "custom_id")
    if custom_id in seen:
        shown = custom_id[:MAX_SHOWN_CHARS]
        return error("duplicate_custom_id", f"The custom_id '{shown}' is used by an earlier line.", "custom_id")
    if request["method"] != "POST":
        return error("invalid_method", "The method must be POST.", "method")
    if request["url"] != rules.endpoint:
        return error("mismatched_url", f"The url must be the batch's endpoint, {rules.endpoint}.", "url")
    if not isinstance(body, dict):
        return error("invalid_body", "The body must be a JSON object.", "body")
    stream = bool(body.get("stream"))
    return Line(custom_id, offset, len(text), rules.num_completions(body), stream, rules.model(body))


def num_completions(endpoint: str, body: Mapping[str, object]) -> int:
    """Return the completions of a request, at least 1; 0 for an embedding request. The body may be invalid."""
    if endpoint == "/v1/embeddings":
        return 0
    n, prompt = body.get("n"), body.get("prompt")
    num_prompts = len(prompt) if isinstance(prompt, list) and not isinstance(next(iter(prompt), 0), int | float) else 1
    num = int(n) if isinstance(n, int | float) and 0 < n < 1 << 16 and n % 1 == 0 else 1  # 2.0 is an integer in JSON
    return num_prompts * num
