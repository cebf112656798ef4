"""A member's session at the rendezvous, which lives as long as its stream."""

import asyncio
from collections.abc import AsyncIterator

from baton.membership.rendezvous.epoch import Epoch, Life, epoch_to_proto
from baton.membership.rendezvous.join import Refused
from baton.protos import group_pb2


class MemberSession:
    """The next message to a member: only the newest epoch, never a queue of them."""

    def __init__(self, life: Life, now_s: float, knows_epoch: bool = False) -> None:
        """`knows_epoch`: whether the member joined with an epoch."""
        self.life = life
        self.knows_epoch = knows_epoch
        self.heartbeat_at_s = now_s  # time of the last heartbeat, by the event loop's clock
        self.end: Refused | None = None  # why the session was closed
        self._is_closed = False
        self._epoch: Epoch | None = None  # not sent yet
        self._wake = asyncio.Event()

    def note_heartbeat(self, now_s: float) -> None:
        """Record a heartbeat and answer it."""
        self.heartbeat_at_s = now_s
        self._wake.set()

    def show(self, epoch: Epoch) -> None:
        """Send the newest epoch."""
        self._epoch = epoch
        self._wake.set()

    def close(self, end: Refused | None = None) -> None:
        """Close the session; `end` is the error for the member."""
        if not self._is_closed:
            self._is_closed, self.end = True, end
            self._wake.set()

    async def messages(self) -> AsyncIterator[group_pb2.GroupMessage]:
        """Yield the messages to the member until the session is closed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_closed:
                return
            message = group_pb2.GroupMessage()
            if self._epoch is not None:
                message.epoch.CopyFrom(epoch_to_proto(self._epoch))
                self._epoch = None
            yield message
