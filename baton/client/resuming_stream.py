"""Resume logic of one request, without I/O."""

import json
import re
import uuid
from typing import Any

import httpx

from baton.client.event_reader import Event, EventReader
from baton.client.outage import Outage, ResumePolicy
from baton.client.router_list import RouterList

PATHS = ("/v1/chat/completions", "/v1/completions")
BEGINNING = "0"  # the position in front of the first token
RESUMABLE = "x-baton-resumable"
DONE = b"[DONE]"
FINISH = re.compile(rb'"finish_reason":\s*"')  # within a string, the quotes would be escaped
TAKEN_OVER = 409  # the router ended this attempt because an earlier attempt arrived late at another router
TEMPORARY = (429, 503, "rate_limit_exceeded")  # error codes worth a retry


def is_generation(request: httpx.Request) -> bool:
    """Whether the response to the request can be resumed."""
    return request.method == "POST" and request.url.path.endswith(PATHS)


class ResumingStream:
    """State of one request over all its attempts: the client's position, and the events after it."""

    def __init__(self, request: httpx.Request, routers: RouterList, policy: ResumePolicy) -> None:
        """Start at the first token. `request` must have its whole body in memory."""
        self.is_over = False  # the client has the whole response
        self._request = request
        self._routers = routers
        self._silence_s = policy.silence_s
        self._outage = Outage(policy)
        self._id = request.headers.get("x-request-id") or uuid.uuid4().hex
        self._is_streamed = _asks_for_stream(request.content)
        self._url = request.url  # of the latest attempt
        self._num_attempts = 0
        self._position = BEGINNING
        self._has_begun = False  # the client has the response's headers
        self._error_text = ""  # of an error event that ended the attempt
        self._reader = EventReader()
        self._held: list[Event] = []  # after the position; the next attempt repeats them
        self._finished: set[int] = set()  # completions whose finish reason the client has

    @property
    def delay_s(self) -> float:
        """Seconds to wait before the next attempt."""
        return self._outage.delay_s

    def attempt(self) -> httpx.Request:
        """Return the request for the next router, with the position to resume from."""
        self._url = self._routers.choose(self._request.url, self._num_attempts)
        self._reader = EventReader()
        self._held.clear()
        self._error_text = ""
        headers = self._request.headers.copy()
        headers["host"] = self._url.netloc.decode("ascii")
        headers["x-request-id"] = self._id
        headers[RESUMABLE] = "true"
        headers["accept-encoding"] = "identity"
        if self._num_attempts:
            headers["x-baton-resume"] = f"{self._id}; tokens={self._position}"
        self._num_attempts += 1
        extensions = {**self._request.extensions, "timeout": self._timeouts()}
        return httpx.Request("POST", self._url, headers=headers, stream=self._request.stream, extensions=extensions)

    def accept(self, response: httpx.Response) -> bool:
        """Whether to pass the response to the client. Its body must have been read unless its status is 200."""
        # In the middle of a stream, a router that cannot resume would start again from the first token.
        if response.status_code == 200 and (RESUMABLE in response.headers or not self._has_begun):
            self._has_begun = self._has_begun or self.is_event_stream(response)
            return True
        return not self._has_begun and not self._is_retryable(response)

    def refuse(self, response: httpx.Response) -> None:
        """Prepare the next attempt after a response that was not accepted. Raises TransportError if no time is left."""
        is_retryable = self._is_retryable(response)
        self._outage.count(self._routers.num_routers(self._url), _retry_after_s(response))
        if not is_retryable:
            text = f"status {response.status_code}: {response.text[:500]}" if response.is_error else "it cannot resume"
            raise self._outage.error(self._latest(text))
        if response.status_code not in (429, TAKEN_OVER):
            self._routers.lose(self._url)

    def is_resumable(self, response: httpx.Response) -> bool:
        """Whether the response is a completion that can be resumed."""
        return response.status_code == 200 and RESUMABLE in response.headers

    def is_event_stream(self, response: httpx.Response) -> bool:
        """Whether the response is an event stream, whose chunks must go through `receive`."""
        return self.is_resumable(response) and str(response.headers.get("content-type")).startswith("text/event-stream")

    def lose(self, error: httpx.TransportError) -> None:
        """Prepare the next attempt after an error. Raises the error, or TransportError if no time is left."""
        if not self._is_loss(error):
            raise error
        has_time = self._outage.has_time()
        self._outage.count(self._routers.num_routers(self._url), error=error)
        self._routers.lose(self._url)
        if not has_time:
            raise self._outage.error(self._latest(f"{type(error).__name__}: {error}")) from error

    def receive(self, chunk: bytes) -> bytes:
        """Return the bytes to pass to the client: whole events up to the latest position."""
        parts: list[bytes] = []
        for event in self._reader.feed(chunk):
            if self.is_over or self._error_text:
                break
            parts += self._commit(event)
        return b"".join(parts)

    def end(self) -> None:
        """Check at the end of the body that the response is complete. Raises RemoteProtocolError."""
        if self._error_text:
            raise httpx.RemoteProtocolError(self._error_text)
        if not self.is_over:
            raise httpx.RemoteProtocolError("the router closed the stream before its last event")

    def _commit(self, event: Event) -> list[bytes]:
        """Hold the event, and return all held events once one has a position."""
        if (error := _error_of(event)) is not None and self._is_retryable_event(error):
            self._error_text = str(error.get("message") or error)
            return []
        if event.id is None and (finished := _finished_completions(event)) and finished <= self._finished:
            return []  # a repeated finish reason, without text
        self._held.append(event)
        self.is_over = error is not None or event.data == DONE
        if event.id is None and not self.is_over:
            return []
        self._position = event.id or self._position
        self._outage.end()
        held, self._held = self._held, []
        self._finished.update(*map(_finished_completions, held))
        return [each.raw for each in held]

    def _is_retryable_event(self, error: dict[str, Any]) -> bool:
        """Whether an error event means that the router is shutting down, or in an outage is worth another attempt."""
        if error.get("code") == "router_draining" or (error.get("code") == TAKEN_OVER and self._num_attempts > 1):
            return True
        return self._outage.num_losses > 0 and error.get("code") in TEMPORARY

    def _is_loss(self, error: httpx.TransportError) -> bool:
        if isinstance(error, httpx.ReadTimeout):  # the client's own read timeout must not be extended
            return self._is_streamed and self._timeouts()["read"] == self._silence_s
        return isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | httpx.ConnectTimeout)

    def _is_retryable(self, response: httpx.Response) -> bool:
        """Whether the status is temporary and there is time for another attempt, at this router or another."""
        status = response.status_code
        if status == 504:  # with our request id it is the router's own: the request has timed out
            is_temporary = bool(response.headers.get("x-request-id") != self._id)
        elif self._num_attempts > 1 and (status == 429 or _code_of(response) == TAKEN_OVER):
            is_temporary = True
        else:
            is_temporary = status in (200, 502, 503)
        return is_temporary and self._outage.has_time(_retry_after_s(response))

    def _timeouts(self) -> dict[str, float | None]:
        given: dict[str, float | None] = self._request.extensions.get("timeout", {})
        timeouts = {**given, "connect": _least(given.get("connect"), self._silence_s)}
        if self._is_streamed:
            timeouts["read"] = _least(given.get("read"), self._silence_s)
        return timeouts

    def _latest(self, text: str) -> str:
        return f"at {self._url.copy_with(path='/', query=None)}: {text}"


def _asks_for_stream(body: bytes) -> bool:
    fields = _json(body)
    return isinstance(fields, dict) and fields.get("stream") is True


def _error_of(event: Event) -> dict[str, Any] | None:
    if event.data is None or not event.data.startswith(b'{"error"'):
        return None
    match _json(event.data):
        case {"error": dict() as error}:
            return error
        case {"error": error}:
            return {"message": error}
    return None


def _code_of(response: httpx.Response) -> object:
    """Return the error code of a router's response; None if it is not an error, or not a router's."""
    match _json(response.content) if response.is_error else None:
        case {"error": {"code": code}}:
            return code
    return None


def _finished_completions(event: Event) -> set[int]:
    if event.data is None or not FINISH.search(event.data):
        return set()
    match _json(event.data):
        case {"choices": list() as choices}:
            pass
        case _:
            return set()  # not a router's event
    return {index for choice in choices if (index := _finished_index(choice)) is not None}


def _finished_index(choice: object) -> int | None:
    """Return the index of a choice of an event if it has finished."""
    match choice:
        case {"index": int() as index, "finish_reason": str()}:
            return index
    return None


def _json(text: bytes) -> object:
    """Return the JSON value; None for other texts, and for values that are nested too deeply."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _retry_after_s(response: httpx.Response) -> float:
    """Return the `retry-after` of a 429, default 1 s; 0 for other statuses."""
    if response.status_code != 429:
        return 0.0
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 1.0


def _least(given_s: float | None, own_s: float) -> float:
    return own_s if given_s is None else min(given_s, own_s)
