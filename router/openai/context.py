"""What a request's headers say of its routing, its time and whose it is."""

import math
from collections.abc import Mapping
from hashlib import blake2b

from baton.router.auth.client import ANYBODY, Client
from baton.router.errors import FieldError
from baton.router.limits import check_worker_name
from baton.router.request_context import NO_HINTS, PLANS, RequestContext, RoutingHints

DECODE, PREFILL, PLAN, TIMEOUT = "x-baton-decode", "x-baton-prefill", "x-baton-plan", "x-baton-timeout"


def read_context(
    headers: Mapping[str, str], user: str | None, priority: int, client: Client = ANYBODY
) -> RequestContext:
    """The request's context; names of headers are in lower case. Raises FieldError for a plan or time that is none.

    Requests with one API key are one client's, whether keys are asked for or not; without a key, those of one `user`.
    """
    timeout = headers.get(TIMEOUT)
    fairness_key = client.fairness_key
    if fairness_key is None:
        fairness_key = _fairness_key(headers.get("authorization", ""), user)
    return RequestContext(
        hints=_hints(headers),
        fairness_key=fairness_key,
        timeout_s=None if timeout is None else _seconds(timeout),
        priority=client.priority(priority),
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


def _fairness_key(authorization: str, user: str | None) -> str:
    """A digest, so that no key stands in a log or a memory dump; "" if the client says nothing of itself."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return blake2b(token.strip().encode(), digest_size=8, person=b"api-key").hexdigest()
    return blake2b(user.encode(), digest_size=8, person=b"user").hexdigest() if user else ""
