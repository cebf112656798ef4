"""Channels to other workers, and the check that a caller means us."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from baton.kvtransfer.errors import PeerLost, TransferDeadline
from baton.rpc.tls import Plaintext, Security

M = TypeVar("M", bound=Callable[..., grpc.aio.Call])


class CountedChannel(grpc.aio.Channel):
    """Owns a channel, passes everything on to it, and counts the calls that have not ended.

    Callers get the channel's own calls; an interceptor's would be others, that end otherwise.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        """To be made on the event loop."""
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._calls: set[object] = set()  # one of each call that has not ended
        self._used_at_s = self._loop.time()

    @property
    def is_busy(self) -> bool:
        """Whether a call has not ended."""
        return bool(self._calls)

    @property
    def unused_s(self) -> float:
        """Seconds since somebody wanted it or the last call ended."""
        return 0.0 if self.is_busy else self._loop.time() - self._used_at_s

    def note_use(self) -> None:
        """Somebody wants it."""
        self._used_at_s = self._loop.time()

    def unary_unary(self, *args: Any, **kwargs: Any) -> grpc.aio.UnaryUnaryMultiCallable[Any, Any]:
        """See grpc.aio.Channel."""
        return self._counted(self._channel.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> grpc.aio.UnaryStreamMultiCallable[Any, Any]:
        """See grpc.aio.Channel."""
        return self._counted(self._channel.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> grpc.aio.StreamUnaryMultiCallable[Any, Any]:
        """See grpc.aio.Channel."""
        return self._counted(self._channel.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> grpc.aio.StreamStreamMultiCallable[Any, Any]:
        """See grpc.aio.Channel."""
        return self._counted(self._channel.stream_stream(*args, **kwargs))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See grpc.aio.Channel."""
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See grpc.aio.Channel."""
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """See grpc.aio.Channel."""
        await self._channel.channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """See grpc.aio.Channel."""
        await self._channel.close(grace)

    async def __aenter__(self) -> grpc.aio.Channel:
        """See grpc.aio.Channel."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """See grpc.aio.Channel."""
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


MAX_WORD_CHARS = 100  # of a caller's words that are repeated: gRPC sends no long texts of errors
MAX_CHANNELS = 256  # beside those that were used just now: without a call each costs some memory and a connection
IDLE_S = 600.0  # a channel that nobody wanted for so long is closed
SOON_S = 60.0  # one that somebody wanted since then may be about to carry a call
LOOK_INTERVAL_S = 10.0  # between two looks at what is unused

Context = grpc.aio.ServicerContext[Any, Any]


class Identified(Protocol):
    """One life of a worker: the description of it or of its pool; without torch, so that simulated ones have it too."""

    @property
    def incarnation(self) -> str:
        """The life."""
        ...

    @property
    def fingerprint(self) -> str:
        """Layout, model and version of its KV."""
        ...


class Channels:
    """Owns the channels to other workers, one to each address.

    Workers come and go, each with an address of its own: at times `get` closes what nobody has used for long. A call is
    never cut short by that.
    """

    def __init__(self, security: Security | None = None) -> None:
        """Without `security` they are plaintext."""
        self._security: Security = security or Plaintext()
        self._version = self._security.version
        self._channels: dict[str, CountedChannel] = {}
        self._replaced: list[CountedChannel] = []  # would connect with old certificates, but have calls that may end
        self._closing: set[asyncio.Task[None]] = set()
        self._look_at_s = 0.0  # event loop's clock

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to host:port, for calls that begin soon; who is longer about the next one asks again."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_INTERVAL_S
            self._close_unused()
        if self._version != self._security.version:
            self._version = self._security.version
            self._replaced += self._channels.values()
            self._channels.clear()
        if address not in self._channels:
            self._channels[address] = CountedChannel(self._security.channel(address))
        channel = self._channels[address]
        channel.note_use()
        return channel

    async def close(self) -> None:
        """Ends all channels and the calls on them."""
        for channel in (*self._replaced, *self._channels.values()):
            await channel.close()
        self._replaced.clear()
        self._channels.clear()
        await asyncio.gather(*self._closing)

    def _close_unused(self) -> None:
        """Closes what was replaced and has no call any more, what is unused for too long, and what is too much."""
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
    """Aborts the call with FAILED_PRECONDITION unless the caller means this life of ours and its blocks fit."""
    if incarnation != ours.incarnation:
        meant = incarnation[:MAX_WORD_CHARS]
        text = f"meant for incarnation {meant}, but this worker is in another life: {ours.incarnation}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
    if fingerprint != ours.fingerprint:
        theirs = fingerprint[:MAX_WORD_CHARS]
        text = f"the caller's fingerprint is {theirs}, ours {ours.fingerprint}: model, dtype or layout differ"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)


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
