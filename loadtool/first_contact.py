"""One small request before a load, which finds a wrong name, key or field, and what the server takes as a prompt."""

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


def reach(target: Target, vocabulary: Vocabulary) -> Target:
    """The target with its model's name, and whether it takes token ids, after one small request that it answered.

    Raises TargetError in the server's words if it refuses, and says what may be wrong if nobody answers.
    """
    try:
        with _connect(target) as http:
            if target.model is None:
                target = replace(target, model=_first_model(http))
            return _try(http, target, vocabulary)
    except (httpx.RequestError, httpx.InvalidURL, UnicodeError) as error:  # the last for names that no host can have
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
    raise TargetError(f"the server names no model ({_words(answer)}); name it by --model")


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
        raise TargetError(f"the server refuses a first small request to {target.path}: {_words(answer)}")
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        raise TargetError(f"the server answers {target.path} with no event stream; only streams can be timed")


def _words(answer: httpx.Response) -> str:
    match _json(answer):
        case {"error": {"message": str() as message}} | {"message": str() as message} | {"detail": str() as message}:
            return f"{answer.status_code}: {message}"
    return f"{answer.status_code}: {answer.text[:300].strip() or answer.reason_phrase}"


def _unreachable(url: str, error: Exception) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return f"{url}: {error}; name who signed its certificate by --ssl-ca-certs"
    return f"no server answers at {url} ({error}); set --url"


def _json(answer: httpx.Response) -> object:
    try:
        return answer.json()
    except ValueError:
        return None
