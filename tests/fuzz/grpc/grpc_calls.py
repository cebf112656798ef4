"""Calls of hostile gRPC clients: whatever they send, the status must blame the client and give the reason."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import grpc

PATIENCE_S = 20.0
OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)  # these would blame the server
MAX_DETAILS = 4000
CORE_ERROR = "Internal error from Core"  # raised by the client's library if the call ends during a write


@dataclass
class Outcome:
    """The responses, and how the call ended."""

    answers: list[bytes] = field(default_factory=list)
    code: grpc.StatusCode | None = None  # None: the client cancelled the call
    details: str = ""

    def check(self) -> None:
        """Fail for a status that blames the server, and for an error without a message."""
        assert self.code not in OURS, (self.code, self.details)
        if self.code not in (None, grpc.StatusCode.OK):
            assert 0 < len(self.details) < MAX_DETAILS, (self.code, self.details[:200])


def identity(message: bytes) -> bytes:
    """Serialize bytes as they are."""
    return message


async def call(
    channel: grpc.aio.Channel,
    method: str,
    messages: Iterable[bytes],
    linger_s: float = 0.0,
    leave_s: float = PATIENCE_S,
) -> Outcome:
    """Send messages to a method, half-close `linger_s` seconds later, and cancel `leave_s` seconds after that.

    This works for every method: on the wire one request is a stream of one. Fails if the call does not end in time,
    unless it was to be cancelled before.
    """
    sent = list(messages)
    call: grpc.aio.StreamStreamCall | grpc.aio.UnaryStreamCall
    if len(sent) == 1 and not linger_s:  # unary: nothing is left to write when the call has ended
        call = channel.unary_stream(method, identity, identity)(sent.pop())
    else:
        call = channel.stream_stream(method, identity, identity)()
    outcome = Outcome()

    async def read() -> None:
        async for answer in call:
            outcome.answers.append(answer)

    reading = asyncio.create_task(read())
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the call may end early
        if isinstance(call, grpc.aio.StreamStreamCall):
            for message in sent:
                await call.write(message)
            await asyncio.wait({reading}, timeout=linger_s)
            await call.done_writing()
    await asyncio.wait({reading}, timeout=leave_s)
    if not reading.done():
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert leave_s < PATIENCE_S, f"{method} hangs"
        return outcome
    with suppress(grpc.aio.AioRpcError):
        await reading
    outcome.code, outcome.details = await call.code(), await call.details() or ""
    if outcome.details == CORE_ERROR:
        outcome.code = None
    return outcome
