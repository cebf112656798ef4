"""The next event of a call to a peer, or why there is none."""

import asyncio
from typing import Any, TypeVar, cast

import grpc
from google.protobuf.message import Message

from baton.kvtransfer.errors import PeerLost, TransferDeadline

Event = TypeVar("Event", bound=Message)


async def next_event(
    call: grpc.aio.UnaryStreamCall[Any, Event] | grpc.aio.StreamStreamCall[Any, Event], peer: str, deadline_s: float
) -> Event | None:
    """None at the call's end. Raises TransferDeadline, AioRpcError, or PeerLost if the call's channel was closed."""
    task = asyncio.current_task()
    assert task is not None
    try:
        async with asyncio.timeout(deadline_s):
            event = await call.read()
    except TimeoutError as error:
        raise TransferDeadline(f"{peer} said nothing for {deadline_s:g} s") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise PeerLost(f"the channel to {peer} was closed") from error  # gRPC says it so
    return cast(Event, event) if isinstance(event, Message) else None  # else grpc.aio.EOF
