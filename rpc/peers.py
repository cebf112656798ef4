"""Channels to other workers, and the check that a caller means us."""

import asyncio
from typing import Any, Protocol

import grpc

from rpc.tls import Plaintext, Security

MAX_WORD_CHARS = 100  # of a caller's words that are repeated: gRPC sends no long texts of errors
CALLS_S = 600.0  # for calls on a channel that was replaced

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
    """Owns one channel to each address."""

    def __init__(self, security: Security | None = None) -> None:
        """Without `security` they are plaintext."""
        self._security: Security = security or Plaintext()
        self._version = self._security.version
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._leaving: dict[grpc.aio.Channel, asyncio.Task[None]] = {}  # old channels, whose calls may end

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to host:port."""
        if address not in self._channels:
            self._channels[address] = self._security.channel(address)
        if self._version != self._security.version:
            self._renew()
            self._channels[address] = self._security.channel(address)
        return self._channels[address]

    async def close(self) -> None:
        """Ends all channels and the calls on them."""
        leaving, self._leaving = self._leaving, {}
        for task in leaving.values():
            task.cancel()
        await asyncio.gather(*leaving.values(), return_exceptions=True)
        for channel in (*leaving, *self._channels.values()):
            await channel.close(None)
        self._channels.clear()

    def _renew(self) -> None:
        """Channels that would connect with old certificates are given up, after a time for their calls."""
        self._version = self._security.version
        for channel in self._channels.values():
            self._leaving[channel] = asyncio.create_task(self._leave(channel))
        self._channels.clear()

    async def _leave(self, channel: grpc.aio.Channel) -> None:
        await asyncio.sleep(CALLS_S)  # gRPC's own grace could not be cut short
        await channel.close(None)
        del self._leaving[channel]


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
