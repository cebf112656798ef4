"""Calls of strangers: whatever they send, the status says that they were wrong, and why."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import grpc

PATIENCE_S = 20.0
OURS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)  # they would blame us
MAX_DETAILS = 4000
UNHEARD = "Internal error from Core"  # our own side of a call that ended while we were writing


@dataclass
class Outcome:
    """What was answered, and how the call ended."""

    answers: list[bytes] = field(default_factory=list)
    code: grpc.StatusCode | None = None  # None: we ended it
    details: str = ""

    def check(self) -> None:
        """Fails for a failing of ours, and for a refusal without words."""
        assert self.code not in OURS, (self.code, self.details)
        if self.code not in (None, grpc.StatusCode.OK):
            assert 0 < len(self.details) < MAX_DETAILS, (self.code, self.details[:200])


def as_they_are(message: bytes) -> bytes:
    """A serializer that does nothing."""
    return message


async def call(
    channel: grpc.aio.Channel,
    method: str,
    messages: Iterable[bytes],
    linger_s: float = 0.0,
    leave_s: float = PATIENCE_S,
) -> Outcome:
    """Sends bytes to a method, says `linger_s` later that there are no more, and leaves `leave_s` after that.

    Every method can be called so: on the wire one request is a stream of one. Fails if there is no end in all that
    time, unless it was to be left before.
    """
    sent = list(messages)
    call: grpc.aio.StreamStreamCall | grpc.aio.UnaryStreamCall
    if len(sent) == 1 and not linger_s:  # nothing is left to write when the call has ended
        call = channel.unary_stream(method, as_they_are, as_they_are)(sent.pop())
    else:
        call = channel.stream_stream(method, as_they_are, as_they_are)()
    outcome = Outcome()

    async def read() -> None:
        async for answer in call:
            outcome.answers.append(answer)

    reading = asyncio.create_task(read())
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it may end before it has heard everything
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
    if outcome.details == UNHEARD:
        outcome.code = None
    return outcome
