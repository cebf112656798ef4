"""What a transport does when a router is lost, without the sending and receiving itself."""

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
TAKEN_OVER = 409  # code with which a router gives a request up: an earlier attempt arrived late at another router
TEMPORARY = (429, 503, "rate_limit_exceeded")  # codes of errors that the same request may not have later


def is_generation(request: httpx.Request) -> bool:
    """Whether the response to the request can be resumed."""
    return request.method == "POST" and request.url.path.endswith(PATHS)


class ResumingStream:
    """The state of one request over all its attempts: what the client has, and what was lost since then."""

    def __init__(self, request: httpx.Request, routers: RouterList, policy: ResumePolicy) -> None:
        """`request` has its whole body in memory."""
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
        self._has_begun = False  # the client has the response's head
        self._lost_by = ""  # the text of an error event
        self._reader = EventReader()
        self._held: list[Event] = []  # since the position, which the next attempt repeats
        self._finished: set[int] = set()  # choices whose finish reason the client has

    @property
    def delay_s(self) -> float:
        """Seconds to wait in front of the next attempt."""
        return self._outage.delay_s

    def attempt(self) -> httpx.Request:
        """Return the request as the next router gets it."""
        self._url = self._routers.choose(self._request.url, self._num_attempts)
        self._reader = EventReader()
        self._held.clear()
        self._lost_by = ""
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
        """Whether the response is what the client gets; its body must have been read unless its status is 200."""
        # In the middle of a stream, a router that cannot resume would begin from the first token.
        if response.status_code == 200 and (RESUMABLE in response.headers or not self._has_begun):
            self._has_begun = self._has_begun or self.is_event_stream(response)
            return True
        return not self._has_begun and not self._is_tried_again(response)

    def refuse(self, response: httpx.Response) -> None:
        """Prepare the next attempt after a response that was not accepted. Raises TransportError if there is none."""
        is_tried_again = self._is_tried_again(response)
        self._outage.count(self._routers.num_routers(self._url), _retry_after_s(response))
        if not is_tried_again:
            text = f"status {response.status_code}: {response.text[:500]}" if response.is_error else "it cannot resume"
            raise self._outage.error(self._latest(text))
        if response.status_code not in (429, TAKEN_OVER):
            self._routers.lose(self._url)

    def is_resumable(self, response: httpx.Response) -> bool:
        """Whether the response is a completion whose loss can be made good."""
        return response.status_code == 200 and RESUMABLE in response.headers

    def is_event_stream(self, response: httpx.Response) -> bool:
        """Whether the response's body goes through `receive`."""
        return self.is_resumable(response) and str(response.headers.get("content-type")).startswith("text/event-stream")

    def lose(self, error: httpx.TransportError) -> None:
        """Prepare the next attempt. Raises TransportError if there is none."""
        if not self._is_loss(error):
            raise error
        has_time = self._outage.has_time()
        self._outage.count(self._routers.num_routers(self._url), error=error)
        self._routers.lose(self._url)
        if not has_time:
            raise self._outage.error(self._latest(f"{type(error).__name__}: {error}")) from error

    def receive(self, chunk: bytes) -> bytes:
        """Return what the client may read now: whole events up to the latest position."""
        parts: list[bytes] = []
        for event in self._reader.feed(chunk):
            if self.is_over or self._lost_by:
                break
            parts += self._commit(event)
        return b"".join(parts)

    def end(self) -> None:
        """Check that a response was whole when its body ended. Raises RemoteProtocolError."""
        if self._lost_by:
            raise httpx.RemoteProtocolError(self._lost_by)
        if not self.is_over:
            raise httpx.RemoteProtocolError("the router closed the stream before its end")

    def _commit(self, event: Event) -> list[bytes]:
        """Return the events that the client may read after this one: none before the next position."""
        if (error := _error_of(event)) is not None and self._is_left(error):
            self._lost_by = str(error.get("message") or error)
            return []
        if event.id is None and (finished := _finished_choices(event)) and finished <= self._finished:
            return []  # the end of a choice comes again, without text
        self._held.append(event)
        self.is_over = error is not None or event.data == DONE
        if event.id is None and not self.is_over:
            return []
        self._position = event.id or self._position
        self._outage.end()
        held, self._held = self._held, []
        self._finished.update(*map(_finished_choices, held))
        return [each.raw for each in held]

    def _is_left(self, error: dict[str, Any]) -> bool:
        """Whether an error in the stream is the router's end, or in an outage one that another attempt may not have."""
        if error.get("code") == "router_draining" or (error.get("code") == TAKEN_OVER and self._num_attempts > 1):
            return True
        return self._outage.num_losses > 0 and error.get("code") in TEMPORARY

    def _is_loss(self, error: httpx.TransportError) -> bool:
        if isinstance(error, httpx.ReadTimeout):  # a client's own time limit is not ours to extend
            return self._is_streamed and self._timeouts()["read"] == self._silence_s
        return isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | httpx.ConnectTimeout)

    def _is_tried_again(self, response: httpx.Response) -> bool:
        """Whether the same request may be served soon, here or by another router, and there is time for it."""
        status = response.status_code
        if status == 504:  # a router's own means that the request's time is over
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
    try:
        fields = json.loads(body)
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.get("stream") is True


def _error_of(event: Event) -> dict[str, Any] | None:
    if event.data is None or not event.data.startswith(b'{"error"'):
        return None
    error = json.loads(event.data)["error"]
    return error if isinstance(error, dict) else {"message": error}


def _code_of(response: httpx.Response) -> object:
    """Return the code of a response that is an error; None if it is none, or not a router's."""
    try:
        return response.json()["error"]["code"] if response.is_error else None
    except (ValueError, KeyError, TypeError):
        return None


def _finished_choices(event: Event) -> set[int]:
    if event.data is None or not FINISH.search(event.data):
        return set()
    return {int(choice["index"]) for choice in json.loads(event.data)["choices"] if choice["finish_reason"]}


def _retry_after_s(response: httpx.Response) -> float:
    """The wait that a full router asks for; others may be asked at once."""
    if response.status_code != 429:
        return 0.0
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() else 1.0


def _least(given_s: float | None, own_s: float) -> float:
    return own_s if given_s is None else min(given_s, own_s)
