"""Channels to other workers, and the check that a caller means us."""

import asyncio
from typing import Any, Protocol

import grpc

from baton.rpc.counted_channel import CountedChannel
from baton.rpc.tls import Plaintext, Security

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
