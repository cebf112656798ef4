"""Table of the errors that clients of the router see, in the shape of each API."""

from dataclasses import dataclass

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response

from baton.engine.errors import EngineEnded, InvalidRequest, QueueFull
from baton.router import errors as router
from baton.router.anthropic import errors as anthropic
from baton.router.files import errors as files
from baton.router.openai import errors as openai
from baton.router.responses.errors import PREVIOUS_NOT_FOUND, NotStored
from baton.router.responses.errors import error_response as stored_response
from baton.rpc import status as rpc
from scripts.reference.tables import code, table

NOT_STORED = "no such file, batch, response or item, or it belongs to another tenant"
ADMIN_ONLY = (
    "the API key is no admin key: it may not load adapters, clear the caches of all tenants, or use the "
    "[console](../console.md)"
)
NOT_NOW = "no worker, or no store of responses, can serve the request now; the message says why"


@dataclass(frozen=True, slots=True)
class Case:
    """An error and when it happens."""

    error: Exception
    meaning: str


def _field(code: str, meaning: str) -> Case:
    return Case(router.FieldError("", "", code), meaning)


CASES = (
    Case(InvalidRequest(""), "a field, a header or the combination of them is invalid; the message says what is right"),
    _field("unknown_parameter", "the server does not have the field"),
    Case(
        router.ContextExceeded("", "", "context_length_exceeded", max_model_len=0, num_tokens=0, num_output_tokens=0),
        "prompt and output do not fit the model's context",
    ),
    _field("prefix_too_short", "the prefix to pin is shorter than a KV block"),
    _field("storage_limit_exceeded", "there is no room for the file, or for results of the batch"),
    _field("too_many_files", "the maximum number of files has been reached"),
    Case(rpc.Unauthenticated(""), "the API key is missing or unknown"),
    Case(rpc.Forbidden(""), ADMIN_ONLY),
    Case(rpc.NotFound(""), "no such model or adapter"),
    Case(router.PinNotFound(""), "no such pin, its time has passed, or it belongs to another tenant"),
    Case(router.UnknownTimeline(""), "no [timeline](../tracing.md#timelines) of the request is kept"),
    Case(files.UnknownId(""), NOT_STORED),
    Case(NotStored("", ""), NOT_STORED),
    Case(NotStored("", "", PREVIOUS_NOT_FOUND), "the response to continue is not stored"),
    Case(HTTPException(408), "the request was not received within `--body-timeout-s`"),
    Case(
        rpc.Conflict(""),
        "another router has taken the request over, a batch that has not ended needs the file, a pin was deleted while "
        "it was made, or a worker cannot carry out an order of the console",
    ),
    Case(router.ResumeFailed(""), "the output was generated again and differs from what the client received"),
    Case(HTTPException(413), "the body is too large, or has too many parts"),
    Case(HTTPException(415), "the body is not declared as JSON, or has another `content-encoding` than gzip"),
    Case(QueueFull(""), "a worker's queue is full, or its quota of pinned KV blocks is used up"),
    Case(router.Overloaded("", 1), "the router is full, or the wait would be too long"),
    Case(router.KeyLimitReached("", 1, "requests"), "the API key has used up its rate or number of requests"),
    Case(router.KeyLimitReached("", 1, "tokens"), "the API key has used up its rate of tokens"),
    Case(rpc.Cancelled(""), "the request was cancelled"),
    Case(router.SlowClient(""), "the client did not read its output"),
    Case(rpc.Internal(""), "the server failed; its log has the details"),
    Case(router.RequestLost(""), "each worker that ran the request was lost, so the request may be the cause"),
    Case(rpc.Unavailable(""), NOT_NOW),
    Case(EngineEnded(""), NOT_NOW),
    Case(router.NoWorker(""), NOT_NOW),
    Case(router.WorkerLost(""), "the worker was lost, and no other worker could continue the request in time"),
    Case(router.HandedOff(""), NOT_NOW),
    Case(router.ShortOfRanks(""), NOT_NOW),
    Case(router.Draining(""), "the router is shutting down: send the request to another router"),
    Case(rpc.DeadlineExceeded(""), "the request exceeded its time limit"),
)
OF_PATHS = (
    ("404", "unknown_url", "the path does not exist"),
    ("405", "method_not_supported", "the path has other methods, which `allow` lists"),
)


def errors() -> str:
    """Return the table of OpenAI's paths."""
    kind = code("invalid_request_error")
    meanings = {(status, code(name), kind): [meaning] for status, name, meaning in OF_PATHS}
    for case in CASES:
        response = _response(case.error)
        body = orjson.loads(response.body)["error"]
        look = (str(response.status_code), code(str(body["code"])), code(body["type"]))
        meanings.setdefault(look, []).append(case.meaning + _hints(response))
    rows = ((*look, "; or ".join(dict.fromkeys(texts))) for look, texts in meanings.items())
    return table(("HTTP", "`error.code`", "`error.type`", "meaning"), sorted(rows, key=lambda row: row[0]))


def other_errors() -> str:
    """Return the table of the same errors in the other APIs, by HTTP status."""
    rows = set()
    for error in (case.error for case in CASES):
        response = _response(error)
        kind = orjson.loads(anthropic.error_response(error, "").body)["error"]["type"]
        grpc = "" if isinstance(error, HTTPException) else rpc.status_of(error).code.name
        rows.add((str(response.status_code), code(kind), code(grpc)))
    return table(("HTTP", "Anthropic's `error.type`", "gRPC"), sorted(rows))


def _response(error: Exception) -> Response:
    if isinstance(error, files.UnknownId):
        return files.error_response(error)
    return stored_response(error) if isinstance(error, NotStored) else openai.error_response(error)


def _hints(response: Response) -> str:
    """Return the response's headers about retries, but for `retry-after`, which all of a status have."""
    names = (name for name in ("x-should-retry", openai.WORKER_LOST) if name in response.headers)
    return "".join(f" (`{name}: {response.headers[name]}`)" for name in names)
