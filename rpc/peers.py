"""Channels to other workers, and the check that a caller means us."""

from typing import Any

import grpc

from kvtransfer.base import PoolDescription

Context = grpc.aio.ServicerContext[Any, Any]

MAX_MESSAGE_BYTES = 64 << 20

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the one that ends the calls of a peer that is stopped
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
)


class Channels:
    """Owns one channel to each address."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    def get(self, address: str) -> grpc.aio.Channel:
        """The channel to host:port."""
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        return self._channels[address]

    async def close(self) -> None:
        """Ends all channels and the calls on them."""
        for channel in self._channels.values():
            await channel.close(None)
        self._channels.clear()


async def check_peer(context: Context, ours: PoolDescription, incarnation: str, fingerprint: str) -> None:
    """Aborts the call with FAILED_PRECONDITION unless the caller means this life of ours and its blocks fit."""
    if incarnation != ours.incarnation:
        text = f"meant for incarnation {incarnation}, but this worker is in another life: {ours.incarnation}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
    if fingerprint != ours.fingerprint:
        text = f"the caller's fingerprint is {fingerprint}, ours {ours.fingerprint}: model, dtype or layout differ"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
