"""A member's reports to its rendezvous."""

import asyncio

from baton.protos import group_pb2


class MemberReport:
    """The newest store and the newest broken epoch; both are sent again on each new stream while they are current."""

    def __init__(self) -> None:
        self._store: group_pb2.StoreReady | None = None
        self._broken: group_pb2.EpochBroken | None = None
        self._unsent: list[group_pb2.MemberMessage] = []
        self._wake = asyncio.Event()

    def set_store(self, store: group_pb2.StoreReady) -> None:
        """Queue the report of an epoch's store that we have opened."""
        self._store = store
        self._queue(group_pb2.MemberMessage(store=store))

    def set_broken(self, broken: group_pb2.EpochBroken) -> None:
        """Queue the report of a broken epoch, once per epoch."""
        if self._broken is None or self._broken.epoch < broken.epoch:
            self._broken = broken
            self._queue(group_pb2.MemberMessage(broken=broken))

    def begin(self, epoch: int) -> None:
        """Begin a new stream: repeat the reports on this epoch, which may have been lost with the last stream."""
        self._unsent.clear()
        if self._store is not None and self._store.epoch == epoch:
            self._queue(group_pb2.MemberMessage(store=self._store))
        if self._broken is not None and self._broken.epoch == epoch:
            self._queue(group_pb2.MemberMessage(broken=self._broken))

    def wake(self) -> None:
        """End the wait of `take`."""
        self._wake.set()

    async def take(self, timeout_s: float) -> list[group_pb2.MemberMessage]:
        """Return all unsent reports as soon as there are any; none after `timeout_s` or a `wake`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return []
        self._wake.clear()
        unsent, self._unsent = self._unsent, []
        return unsent

    def _queue(self, message: group_pb2.MemberMessage) -> None:
        self._unsent.append(message)
        self._wake.set()
