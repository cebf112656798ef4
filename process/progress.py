"""Progress of a starting process: JSON lines to its supervisor over an inherited pipe."""

import asyncio
import json
import math
import os
import select
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HEARTBEAT_S = 0.25
MIN_INTERVAL_S = 0.1  # between two loading messages
FINAL_WRITE_TIMEOUT_S = 5.0  # for `waiting`, `ready` and `failed` while the pipe is full
MAX_MESSAGE_CHARS = 2000  # of a failure
MAX_MESSAGE_BYTES = select.PIPE_BUF - 100  # of a failure as JSON: a line below PIPE_BUF is written atomically


class ProgressError(ValueError):
    """A line that is not a progress message."""


@dataclass(frozen=True, slots=True)
class Loading:
    """The process is loading; `fraction` is done, 0 to 1."""

    fraction: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """The process waits for the worker's other nodes at `address` (host:port)."""

    address: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The process serves at `address` (host:port); `details` are all fields of the message."""

    address: str
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failed:
    """The process cannot serve; `message` is the reason."""

    message: str


@dataclass(frozen=True, slots=True)
class Alive:
    """A heartbeat of the process's event loop."""


Progress = Loading | Waiting | Ready | Failed | Alive


class ProgressReporter:
    """The writing side; no-op without a descriptor, or after the reader has closed the pipe."""

    def __init__(self, fd: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._fd = fd
        self._clock = clock
        self._next_loading_s = -math.inf
        if fd is not None:
            os.set_blocking(fd, False)  # a supervisor that does not read must not block us

    def loading(self, fraction: float) -> None:
        """Report the loaded fraction, at most every MIN_INTERVAL_S except for the last one."""
        now_s = self._clock()
        if now_s < self._next_loading_s and fraction < 1:
            return
        self._next_loading_s = now_s + MIN_INTERVAL_S
        self._write({"stage": "loading", "fraction": round(min(max(fraction, 0.0), 1.0), 4)}, timeout_s=0)

    def waiting(self, address: str) -> None:
        """Report the address (host:port) at which it waits for other nodes."""
        self._write({"stage": "waiting", "address": address}, timeout_s=FINAL_WRITE_TIMEOUT_S)

    def ready(self, **fields: object) -> None:
        """Report that the process serves; `fields` has its `address` (host:port)."""
        self._write({"stage": "ready", **fields}, timeout_s=FINAL_WRITE_TIMEOUT_S)

    def failed(self, message: str) -> None:
        """Report why the process cannot serve."""
        text = message[:MAX_MESSAGE_CHARS]
        while len(json.dumps(text)) > MAX_MESSAGE_BYTES:
            text = text[: len(text) // 2]
        self._write({"stage": "failed", "message": text}, timeout_s=FINAL_WRITE_TIMEOUT_S)

    async def send_heartbeats(self) -> None:
        """Send heartbeats from the event loop until cancelled."""
        while True:
            self._write({"stage": "alive"}, timeout_s=0)
            await asyncio.sleep(HEARTBEAT_S)

    def _write(self, message: Mapping[str, object], timeout_s: float) -> None:
        if self._fd is None:
            return
        try:
            if timeout_s:
                writable = select.poll()  # not `select`, which takes no descriptor above 1,023
                writable.register(self._fd, select.POLLOUT)
                writable.poll(1e3 * timeout_s)
            os.write(self._fd, json.dumps(message).encode() + b"\n")
        except BlockingIOError:
            return  # the pipe is full; a later message supersedes this one
        except OSError:
            self._fd = None  # the supervisor has ended; the lifeline decides what follows


def parse_progress(line: bytes) -> Progress:
    """Return the message in one line of the pipe. Raises ProgressError if it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProgressError(f"not JSON: {line[:MAX_MESSAGE_CHARS]!r}") from error
    match message:
        case {"stage": "loading", "fraction": int() | float() as fraction} if 0 <= fraction <= 1:
            return Loading(float(fraction))
        case {"stage": "waiting", "address": str() as address}:
            return Waiting(address)
        case {"stage": "ready", **details}:
            return Ready(str(details.get("address", "")), {str(key): value for key, value in details.items()})
        case {"stage": "failed", "message": str() as text}:
            return Failed(text)
        case {"stage": "alive"}:
            return Alive()
    raise ProgressError(f"not a progress message: {line!r}")
