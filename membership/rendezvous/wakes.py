"""Wakes between the members of a group: when one begins a step, idle members must take part."""

import asyncio
import logging
from collections.abc import Callable, Iterable

import grpc

from baton.membership.rendezvous.epoch import Life
from baton.protos import group_pb2, group_pb2_grpc
from baton.rpc.peers import MAX_WORD_CHARS, Channels, Context

logger = logging.getLogger(__name__)

WAKE_TIMEOUT_S = 2.0  # after this the wake is retried, unless the rendezvous has removed the member
RETRY_S = 0.05
WRONG_INCARNATION = grpc.StatusCode.FAILED_PRECONDITION  # another process is at this address


class Wakes:
    """Wake calls in progress: one per member, and the newest request that waits for it."""

    def __init__(self, channels: Channels, group: str, timeout_s: float = WAKE_TIMEOUT_S) -> None:
        self._channels = channels
        self._group = group
        self._timeout_s = timeout_s
        self._waiting: dict[Life, group_pb2.WakeRequest] = {}
        self._calls: dict[Life, asyncio.Task[None]] = {}

    def send(self, lives: Iterable[Life], epoch: int, round_number: int) -> None:
        """Start waking members; a newer wake replaces one that waits."""
        for life in lives:
            self._waiting[life] = group_pb2.WakeRequest(
                group=self._group, incarnation=life.incarnation, epoch=epoch, round_number=round_number
            )
            if life not in self._calls:
                self._calls[life] = asyncio.create_task(self._call(life), name=f"wake {life}")

    async def close(self) -> None:
        """Cancel all calls."""
        calls = list(self._calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def keep(self, lives: Iterable[Life]) -> None:
        """Drop the wakes of lives other than these, which are the group's members."""
        for life in self._waiting.keys() - set(lives):
            del self._waiting[life]

    async def _call(self, life: Life) -> None:
        """Retry until the member responds or has left the group: until then the others may wait for it forever."""
        try:
            while (request := self._waiting.get(life)) is not None:
                stub = group_pb2_grpc.GroupPeerStub(self._channels.get(life.address))
                try:
                    await stub.Wake(request, timeout=self._timeout_s, wait_for_ready=True)
                except grpc.aio.AioRpcError as error:
                    logger.debug("could not wake %s: %s", life, error.details())
                    if error.code() is WRONG_INCARNATION:
                        return
                    await asyncio.sleep(RETRY_S)
                    continue
                if self._waiting.get(life) is request:
                    del self._waiting[life]
        finally:
            self._waiting.pop(life, None)
            del self._calls[life]


class GroupPeerService(group_pb2_grpc.GroupPeerServicer):
    """The GroupPeer service: receives wakes; refuses those for another group or incarnation."""

    def __init__(self, group: str, incarnation: str, woken: Callable[[int, int], bool]) -> None:
        """`woken` is called with the epoch and the round number, on the event loop; False: too many are queued."""
        self._group = group
        self._incarnation = incarnation
        self._woken = woken

    async def Wake(  # noqa: N802  # the service's name
        self, request: group_pb2.WakeRequest, context: Context
    ) -> group_pb2.WakeResponse:
        """Wake the engine: another member has begun a step."""
        if (request.group, request.incarnation) != (self._group, self._incarnation):
            meant = ascii(f"{request.incarnation[:MAX_WORD_CHARS]} of group {request.group[:MAX_WORD_CHARS]}")
            ours = f"{self._incarnation} of group {self._group}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the wake is for {meant}; this is {ours}")
        if not self._woken(request.epoch, request.round_number):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many wakes are queued; try again")
        return group_pb2.WakeResponse()
