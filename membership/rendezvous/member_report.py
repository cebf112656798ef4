"""What a member has to tell its rendezvous."""

import asyncio

from baton.protos import group_pb2


class MemberReport:
    """Owns the newest store and the newest broken epoch, which are told over each stream anew while they count."""

    def __init__(self) -> None:
        self._store: group_pb2.StoreReady | None = None
        self._broken: group_pb2.EpochBroken | None = None
        self._untold: list[group_pb2.MemberMessage] = []
        self._wake = asyncio.Event()

    def set_store(self, store: group_pb2.StoreReady) -> None:
        """We have opened an epoch's store."""
        self._store = store
        self._tell(group_pb2.MemberMessage(store=store))

    def set_broken(self, broken: group_pb2.EpochBroken) -> None:
        """An epoch is broken; it is told once."""
        if self._broken is None or self._broken.epoch < broken.epoch:
            self._broken = broken
            self._tell(group_pb2.MemberMessage(broken=broken))

    def begin(self, epoch: int) -> None:
        """A new stream begins: what was told over the last may not have been heard. Of an older epoch it is useless."""
        self._untold.clear()
        if self._store is not None and self._store.epoch == epoch:
            self._tell(group_pb2.MemberMessage(store=self._store))
        if self._broken is not None and self._broken.epoch == epoch:
            self._tell(group_pb2.MemberMessage(broken=self._broken))

    def wake(self) -> None:
        """Ends the wait for news."""
        self._wake.set()

    async def take(self, timeout_s: float) -> list[group_pb2.MemberMessage]:
        """All that is new, as soon as there is something; nothing, if it takes so long or was woken."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return []
        self._wake.clear()
        untold, self._untold = self._untold, []
        return untold

    def _tell(self, message: group_pb2.MemberMessage) -> None:
        self._untold.append(message)
        self._wake.set()
