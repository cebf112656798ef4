"""A channel that knows whether it is in use."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

import grpc

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
