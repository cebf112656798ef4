"""Channels to other workers, and the check that a call is meant for this one."""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from baton.kvtransfer.errors import PeerLost, TransferDeadline
from baton.rpc.tls import Plaintext, Security

M = TypeVar("M", bound=Callable[..., grpc.aio.Call])


class CountedChannel(grpc.aio.Channel):
    """A channel with a count of its open calls.

    It is a wrapper, since callers must get the channel's own calls: those of an interceptor end differently.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """Wrap `channel`; to be called on the event loop."""
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._calls: set[object] = set()  # a mark for each open call
        self._used_at_s = self._loop.time()

    @property
    def is_busy(self) -> bool:
        """Whether a call is open."""
        return bool(self._calls)

    @property
    def unused_s(self) -> float:
        """Seconds since the last `note_use` or the end of the last call; 0 while a call is open."""
        return 0.0 if self.is_busy else self._loop.time() - self._used_at_s

    def note_use(self) -> None:
        """Reset `unused_s`."""
        self._used_at_s = self._loop.time()

    def unary_unary(self, *args: Any, **kwargs: Any) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        """Return the channel's callable, whose calls are counted."""
        return self._counted(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        """Return the channel's callable, whose calls are counted."""
        return self._counted(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        """Return the channel's callable, whose calls are counted."""
        return self._counted(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        """Return the channel's callable, whose calls are counted."""
        return self._counted(self._channel.stream_stream(*args, **kwargs))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until the state of the connection differs from the last observed one."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Wait until the connection is ready."""
        await self._channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Close the channel after `grace` seconds for open calls; None: at once."""
        await self._channel.close(grace)

    async def __aenter__(self) -> grpc.aio.Channel:
        """Return the channel."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the channel."""
        await self.close()

    def _counted(self, begin: M) -> M:
        def begin_counted(*args: Any, **kwargs: Any) -> grpc.aio.Call:
            call = begin(*args, **kwargs)
            mark = object()
            self._calls.add(mark)
            call.add_done_callback(lambda _: self._note_end(mark))
            return call

        return cast(M, begin_counted)

    def _note_end(self, mark: object) -> None:
        self._calls.discard(mark)
        self.note_use()


MAX_WORD_CHARS = 100  # of a caller's text repeated in an error, since gRPC limits the length of error texts
MAX_CHANNELS = 256  # kept, in addition to those used within SOON_S: an idle one costs some memory and a connection
IDLE_S = 600.0  # a channel unused for this long is closed
SOON_S = 60.0  # a channel used within this time may be about to carry a call and stays open
CHECK_INTERVAL_S = 10.0  # between two checks for unused channels
VERSION_INTERVAL_S = 1.0  # between two checks for new certificates, which start a thread and wait for it

Context = grpc.aio.ServicerContext[Any, Any]


class Identified(Protocol):
    """The identity of one incarnation of a worker or of its pool. No torch, for simulated workers."""

    @property
    def incarnation(self) -> str:
        """Random id of this start of the worker."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the KV's layout, model and version."""
        ...


class Channels:
    """The channels to other workers, one for each address.

    Workers come and go with different addresses, so `get` also closes channels that were unused for long. A channel
    with an open call is never closed by that.
    """

    def __init__(self, security: Security | None = None) -> None:
        """`security` defaults to plaintext."""
        self._security: Security = security or Plaintext()
        self._version = self._security.version
        self._channels: dict[str, CountedChannel] = {}
        self._replaced: list[CountedChannel] = []  # have old certificates, but may still have open calls
        self._closing: set[asyncio.Task[None]] = set()
        self._next_check_s = self._next_version_s = 0.0  # event loop's clock

    def get(self, address: str) -> grpc.aio.Channel:
        """Return the channel to host:port, for calls that begin within SOON_S; call again for later ones."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + CHECK_INTERVAL_S
            self._close_unused()
        if now_s >= self._next_version_s:
            self._next_version_s = now_s + VERSION_INTERVAL_S
            self._replace_old(self._security.version)
        if address not in self._channels:
            self._channels[address] = CountedChannel(self._security.channel(address))
        channel = self._channels[address]
        channel.note_use()
        return channel

    async def close(self) -> None:
        """Close all channels and end their calls."""
        for channel in (*self._replaced, *self._channels.values()):
            await channel.close()
        self._replaced.clear()
        self._channels.clear()
        await asyncio.gather(*self._closing)

    def _replace_old(self, version: int) -> None:
        """Have later calls use new channels if the certificates are of another version."""
        if self._version != version:
            self._version = version
            self._replaced += self._channels.values()
            self._channels.clear()

    def _close_unused(self) -> None:
        """Close replaced channels without calls, those unused for too long, and those above MAX_CHANNELS."""
        old = [channel for channel in self._replaced if channel.unused_s > SOON_S]
        self._replaced = [channel for channel in self._replaced if channel not in old]
        num_surplus = len(self._channels) - MAX_CHANNELS
        longest_first = sorted(self._channels.items(), key=lambda item: item[1].unused_s, reverse=True)
        for number, (address, channel) in enumerate(longest_first):
            if channel.unused_s > IDLE_S or (channel.unused_s > SOON_S and number < num_surplus):
                old.append(self._channels.pop(address))
        for channel in old:
            task = asyncio.create_task(channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def check_peer(context: Context, ours: Identified, incarnation: str, fingerprint: str) -> None:
    """Abort the call with FAILED_PRECONDITION unless it names this incarnation and an equal fingerprint."""
    if incarnation != ours.incarnation:
        meant = incarnation[:MAX_WORD_CHARS]
        text = f"the call is for incarnation {meant}; this worker has restarted as {ours.incarnation}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
    if fingerprint != ours.fingerprint:
        caller = fingerprint[:MAX_WORD_CHARS]
        text = (
            f"the caller's fingerprint is {caller}, ours is {ours.fingerprint}: model, weights, dtype or layout differ "
            "(for quantizations of one model set --allow-mixed-quantization on both workers)"
        )
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)


REFUSAL = ("baton-refusal", "true")  # in the trailing metadata of calls that a worker refuses


async def refuse(context: Context, text: str) -> None:
    """Abort the call with UNAVAILABLE, marked as the refusal of a worker that takes no requests now."""
    await context.abort(grpc.StatusCode.UNAVAILABLE, text, trailing_metadata=(REFUSAL,))


def is_refusal(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the peer refused the call by `refuse`: the connection to it is intact, and it did not fail."""
    metadata = cast(Iterable[tuple[str, str | bytes]], error.trailing_metadata() or ())
    return REFUSAL in tuple(metadata)


Event = TypeVar("Event", bound=Message)


async def next_event(
    call: grpc.aio.UnaryStreamCall[Any, Event] | grpc.aio.StreamStreamCall[Any, Event], peer: str, deadline_s: float
) -> Event | None:
    """Return the next event, or None at the call's end.

    Raises TransferDeadline, AioRpcError, or PeerLost if the call's channel was closed.
    """
    task = asyncio.current_task()
    assert task is not None
    try:
        async with asyncio.timeout(deadline_s):
            event = await call.read()
    except TimeoutError as error:
        raise TransferDeadline(f"{peer} sent nothing for {deadline_s:g} s") from error
    except asyncio.CancelledError as error:
        if task.cancelling():
            raise
        raise PeerLost(
            f"the channel to {peer} was closed"
        ) from error  # gRPC reports a closed channel as a cancellation
    return cast(Event, event) if isinstance(event, Message) else None  # otherwise grpc.aio.EOF
