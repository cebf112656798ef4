"""Probe request before a load: checks model name, key and fields, and whether the server accepts token ids."""

from dataclasses import replace

import httpx
import numpy as np

from baton.loadtool.errors import TargetError
from baton.loadtool.request import LoadRequest
from baton.loadtool.target import Target
from baton.loadtool.vocabulary import Vocabulary

CONNECT_TIMEOUT_S = 5.0
FIRST_ANSWER_TIMEOUT_S = 300.0  # a model may be loaded for the first request
NUM_FIRST_TOKENS = 4
GREETING = "Hello"


def probe(target: Target, vocabulary: Vocabulary) -> Target:
    """Return the target with its model name and whether it takes token ids, after a successful probe request.

    Raises TargetError with the server's error if it rejects the request, or with the likely cause if it is unreachable.
    """
    try:
        with _connect(target) as http:
            if target.model is None:
                target = replace(target, model=_first_model(http))
            return _try(http, target, vocabulary)
    except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: invalid host name
        raise TargetError(_unreachable(target.base_url, error)) from error


def _connect(target: Target) -> httpx.Client:
    return httpx.Client(
        base_url=target.base_url,
        timeout=httpx.Timeout(FIRST_ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        headers=dict(target.headers or {}),
        verify=target.tls() or True,
        trust_env=False,
    )


def _first_model(http: httpx.Client) -> str:
    answer = http.get("/v1/models")
    match _json(answer):
        case {"data": [{"id": str() as name}, *_]} if answer.is_success:
            return name
    raise TargetError(f"the server lists no models ({_error_text(answer)}); set --model")


def _try(http: httpx.Client, target: Target, vocabulary: Vocabulary) -> Target:
    if target.is_chat or target.takes_token_ids is False:
        _ask(http, target, LoadRequest(GREETING, 1), vocabulary)
        return target
    request = LoadRequest(vocabulary.draw(np.random.default_rng(), NUM_FIRST_TOKENS), 1)
    with_ids, with_text = (replace(target, takes_token_ids=takes) for takes in (True, False))
    try:
        _ask(http, with_ids, request, vocabulary)
    except TargetError:
        if target.takes_token_ids or vocabulary.words is None:
            raise
        _ask(http, with_text, request, vocabulary)
        return with_text
    return with_ids


def _ask(http: httpx.Client, target: Target, request: LoadRequest, vocabulary: Vocabulary) -> None:
    body = target.body(request, vocabulary)
    answer = http.post(target.path, content=body, headers={"content-type": "application/json"})
    if not answer.is_success:
        raise TargetError(f"the server rejects a probe request to {target.path}: {_error_text(answer)}")
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        raise TargetError(f"the server's response to {target.path} is not an event stream; only streams can be timed")


def _error_text(answer: httpx.Response) -> str:
    match _json(answer):
        case {"error": {"message": str() as message}} | {"message": str() as message} | {"detail": str() as message}:
            return f"{answer.status_code}: {message}"
    return f"{answer.status_code}: {answer.text[:300].strip() or answer.reason_phrase}"


def _unreachable(url: str, error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"{url}: {error}; set --ssl-ca-certs to the CA that signed its certificate"
    return f"no server responds at {url} ({error}); set --url"


def _json(answer: httpx.Response) -> object:
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None
