"""Request headers: id, type and size of the body, routing hints, deadline, tenant, and resumption."""

import math
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b

from starlette.exceptions import HTTPException

from baton.router.admission.deadline import deadline_after
from baton.router.auth.client import ANONYMOUS, Client, sent_key
from baton.router.errors import FieldError
from baton.router.generation import GenerationRequest
from baton.router.limits import check_worker_name
from baton.router.request_context import NO_HINTS, PLANS, RequestContext, RoutingHints
from baton.router.resumption.resumption import Position, Resumption
from baton.router.tracing.request_trace import RequestTrace
from baton.settings.names import NAME_RULE, is_name

GZIP_NAMES = ("gzip", "x-gzip")  # the second is an alias of the first (RFC 9110, 8.4.1.3)


def new_id(given: str) -> str:
    """Return the id of a request: the client's if it is a valid name, otherwise a random one."""
    return given if given and is_name(given) else uuid.uuid4().hex


def read_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Decode headers with lower-case names; keeps the first one of duplicates."""
    headers: dict[str, str] = {}
    for name, value in raw:
        headers.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return headers


MAX_DIGITS = 19  # of a number of bytes; longer ones exceed every limit


def announced_size(headers: Mapping[str, str]) -> int:
    """Return the body's length from `content-length`; 0 if it is absent or malformed."""
    announced = headers.get("content-length", "0")
    digits = announced.lstrip("0")[:MAX_DIGITS] or "0"
    return int(digits) if announced.isdecimal() else 0


def is_json(content_type: str) -> bool:
    """Return whether a content type is JSON's."""
    if content_type == "application/json":
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def is_gzip(content_encoding: str) -> bool:
    """Return whether a body is compressed. Raises HTTPException (415) for any encoding but gzip."""
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return False
    if name in GZIP_NAMES:
        return True
    text = f"content-encoding is {name[:50]!r}, but must be gzip or left out"
    raise HTTPException(415, text, {"accept-encoding": "gzip"})


DECODE, PREFILL, PLAN, TIMEOUT = "x-baton-decode", "x-baton-prefill", "x-baton-plan", "x-baton-timeout"


def read_context(
    headers: Mapping[str, str],
    user: str | None,
    priority: int,
    client: Client = ANONYMOUS,
    default_timeout_s: float | None = None,
    trace: RequestTrace | None = None,
) -> RequestContext:
    """Return the request's context from its headers, by lower-case name. Raises FieldError for invalid ones.

    The fairness key is the API key, also if the router needs none; without a key it is `user`.
    """
    timeout = headers.get(TIMEOUT)
    timeout_s = default_timeout_s if timeout is None else _seconds(timeout)
    fairness_key = client.fairness_key
    if fairness_key is None:
        fairness_key = _fairness_key(sent_key(headers), user)
    return RequestContext(
        hints=_hints(headers),
        fairness_key=fairness_key,
        deadline_s=None if timeout_s is None else deadline_after(timeout_s),
        priority=client.priority(priority),
        is_deferred=client.is_deferred,
        tenant=client.tenant_id,
        trace=trace,
    )


def _hints(headers: Mapping[str, str]) -> RoutingHints:
    decode, prefill, plan = headers.get(DECODE), headers.get(PREFILL), headers.get(PLAN)
    if decode is None and prefill is None and plan is None:
        return NO_HINTS
    if plan and plan not in PLANS:
        raise FieldError(PLAN, f"{PLAN} is {plan[:50]!r}, but must be local or remote")
    check_worker_name(DECODE, decode)
    check_worker_name(PREFILL, prefill)
    return RoutingHints(decode or None, prefill or None, PLANS[plan] if plan else None)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise FieldError(TIMEOUT, f"{TIMEOUT} is {text[:50]!r}, but must be a number of seconds above 0")
    return value


def _fairness_key(api_key: str, user: str | None) -> str:
    """Return a digest of the API key or the user; "" if there is neither. A digest keeps keys out of logs."""
    if api_key:
        return blake2b(api_key.encode(), digest_size=8, person=b"api-key").hexdigest()
    return blake2b(user.encode(), digest_size=8, person=b"user").hexdigest() if user else ""


IS_HEAD = "baton.is_head"  # in the scope of a HEAD request, which is served as GET without the body
REQUEST_ID, RESUMABLE, RESUME = "x-request-id", "x-baton-resumable", "x-baton-resume"
RESPONSE_HEADERS: Mapping[str, str] = {RESUMABLE: "true"}  # of resumable responses
POSITION = re.compile(r"tokens=([0-9]{1,9}(?:,[0-9]{1,9})*)(?::([0-9a-f]{8}))?")
MAX_COMPLETIONS = 1 << 16


def is_resumable(headers: Mapping[str, str]) -> bool:
    """Return whether headers ask for a resumable request, or one that is resumed."""
    return RESUMABLE in headers or RESUME in headers


def read_resumption(headers: Mapping[str, str], client: Client, body: bytes | bytearray) -> Resumption | None:
    """Return the identity of a resumable request and the position to resume at, if any; None if it is not resumable.

    Raises FieldError for headers that are malformed or contradict each other.
    """
    if not is_resumable(headers):
        return None
    request_id = headers.get(REQUEST_ID, "")
    if not is_name(request_id):
        raise FieldError(REQUEST_ID, f"a resumable request needs a unique {REQUEST_ID} with {NAME_RULE}")
    position = None
    if (resume := headers.get(RESUME)) is not None:
        position = _position(resume, request_id)
    elif headers[RESUMABLE] != "true":
        if headers[RESUMABLE] == "false":
            return None
        raise FieldError(RESUMABLE, f"{RESUMABLE} is {headers[RESUMABLE][:50]!r}, but must be true or false")
    identity = client.key.name if client.key is not None else headers.get("authorization") or sent_key(headers)
    return Resumption.of(identity, request_id, body, position)


def resumable(request: GenerationRequest, resumption: Resumption | None, place: int = 0) -> GenerationRequest:
    """Return the request for the prompt at this place, with its resume key and a reproducible seed."""
    if resumption is None:
        return request
    seed = resumption.seed(place) if request.seed is None else request.seed
    return replace(request, seed=seed, resume_key=resumption.key(place))


def position_of(resumption: Resumption | None, num_completions: int, stream: bool) -> Position | None:
    """Return the client's position in a response of `num_completions` completions; None if the request is not resumed.

    Raises FieldError for a position that the response cannot have.
    """
    if resumption is None or resumption.position is None:
        return None
    counts, digest = resumption.position.counts, resumption.position.digest
    if counts == (0,):
        return Position((0,) * num_completions)
    if not stream and any(counts):
        raise FieldError(RESUME, f"{RESUME} must have tokens=0 unless stream is true")
    if len(counts) != num_completions:
        raise FieldError(
            RESUME, f"{RESUME} has tokens of {len(counts)} completions, but the request has {num_completions}"
        )
    return Position(counts, digest)


def _position(value: str, request_id: str) -> Position:
    given_id, _, tokens = value.rpartition(";")
    match = POSITION.fullmatch(tokens.strip())
    if match is None or match[1].count(",") >= MAX_COMPLETIONS:
        text = f"{RESUME} is {value[:100]!r}, but must be 'ID; tokens=POSITION', with an event's id as the position"
        raise FieldError(RESUME, text)
    if given_id.strip() != request_id:
        raise FieldError(RESUME, f"{RESUME} must name the same request as {REQUEST_ID}")
    return Position(tuple(map(int, match[1].split(","))), match[2])
