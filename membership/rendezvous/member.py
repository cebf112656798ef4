"""A member of a group: a worker's stream to the rendezvous, and what its engine is told and tells.

The life of a membership: the member joins, is told of each epoch, and says every now and then that it lives. When the
stream ends, for whatever reason, it joins again with the newest epoch that it knows; meanwhile the group goes on as it
was. It ends with its leave, or when the rendezvous refuses it for good.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from baton.engine.parallel.group_view import GroupView, NewestView
from baton.kvtransfer.errors import PeerLost, TransferDeadline
from baton.membership.rendezvous.epoch import Epoch, Life, epoch_from_proto, epoch_to_proto, life_to_proto
from baton.membership.rendezvous.member_report import MemberReport
from baton.membership.rendezvous.rendezvous_address import RendezvousAddress, RendezvousUnknown
from baton.membership.rendezvous.wakes import Wakes
from baton.protos import group_pb2, group_pb2_grpc
from baton.rpc.backoff import Backoff
from baton.rpc.peers import Channels, next_event
from baton.rpc.tls import Security

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.02
LAST_BACKOFF_S = 0.5
BEATS = 5  # within the time after which a silent member is out
PATIENCE = 3  # how many times that time the rendezvous may be silent
FIRST_PATIENCE_S = 5.0  # the same before it has said what that time is
LEAVE_S = 1.0  # longest wait for the rendezvous to hear of our leave
FOR_GOOD = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)  # to ask again would not help

Call = grpc.aio.StreamStreamCall[group_pb2.MemberMessage, group_pb2.GroupMessage]


class GroupRefused(Exception):
    """The rendezvous does not take us; the text says why."""


class StreamLost(Exception):
    """The stream to the rendezvous has ended; another may not."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which group we are in, as whom."""

    group: str
    life: Life
    fingerprint: str
    size: int  # members with which the group begins


class GroupMember:
    """Owns our membership; it is an engine's `Membership`.

    Made, started and closed on the event loop; what the engine calls may come from any thread.
    """

    def __init__(self, rendezvous: RendezvousAddress, place: Place, security: Security, channels: Channels) -> None:
        """rendezvous: asked anew before each try to join; channels: to the other members."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # raises why we are refused
        self._loop = asyncio.get_running_loop()
        self._rendezvous = rendezvous
        self._place = place
        self._security = security
        self._epoch: Epoch | None = None
        self._newest = NewestView()
        self._news = MemberReport()
        self._wakes = Wakes(channels, place.group)
        self._listener: Callable[[GroupView], None] | None = None
        self._is_leaving = False
        self._loss = ""  # why there is no stream
        self._run: asyncio.Task[None] | None = None

    def listen(self, listener: Callable[[GroupView], None]) -> None:
        """`listener` hears each newer view, on the event loop."""
        self._listener = listener

    def join(self) -> None:
        """Begins to join, if that was not begun; for any thread."""
        self._post(self.start)

    def start(self) -> None:
        """The same, on the event loop."""
        if self._run is not None or self._is_leaving:
            return
        self._run = asyncio.create_task(self._keep(), name="group member")

    async def leave(self) -> None:
        """Takes us out, now and for good: the others go on without us. We know no newer epoch from now on."""
        self._is_leaving = True
        self._news.wake()
        if self._run is not None:
            await asyncio.wait((self._run,), timeout=LEAVE_S)
            await self._end(self._run)

    async def close(self) -> None:
        """Leaves, and wakes nobody any more."""
        await self.leave()
        await self._wakes.close()
        await self._rendezvous.close()
        if not self.failed.cancel():
            self.failed.exception()  # who did not ask for it does not need it

    @property
    def epoch(self) -> int:
        """The newest epoch; 0 before the first."""
        return self._newest.epoch

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        """The newest view as soon as it is another one than `seen`; None if not in time."""
        return self._newest.wait(seen, timeout_s)

    def publish_store(self, epoch: int, address: str) -> None:
        """We are the epoch's first member, and this is its store; also told to a rendezvous that is away now."""
        self._post(self._news.set_store, group_pb2.StoreReady(epoch=epoch, address=address))

    def report_broken(self, epoch: int, reason: str) -> None:
        """A new epoch is wanted."""
        self._post(self._news.set_broken, group_pb2.EpochBroken(epoch=epoch, reason=reason))

    def wake(self, epoch: int, round_number: int) -> None:
        """Wakes all other members of the epoch, if it is still the newest."""
        self._post(self._wake_others, epoch, round_number)

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and we with it
            self._loop.call_soon_threadsafe(function, *arguments)

    def _wake_others(self, epoch: int, round_number: int) -> None:
        if self._epoch is not None and self._epoch.number == epoch and not self._is_leaving:
            others = (life for life in self._epoch.lives if life != self._place.life)
            self._wakes.send(others, epoch, round_number)

    async def _keep(self) -> None:
        """Joins again and again, until we leave or are refused."""
        backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        while not self._is_leaving:
            try:
                address = await self._rendezvous.find()
                async with self._security.channel(address) as channel:
                    await self._attend(channel, address)
            except (StreamLost, RendezvousUnknown) as error:
                self._note_loss(str(error))
            except Exception as error:  # whatever it is: a worker cannot go on without its group
                self.failed.set_exception(error)
                return
            if not self._is_leaving:
                await backoff.wait()

    async def _attend(self, channel: grpc.aio.Channel, address: str) -> None:
        """One stream, to its end. Raises StreamLost, or GroupRefused."""
        call: Call = group_pb2_grpc.RendezvousStub(channel).Join()  # type: ignore[call-arg]  # written by hand
        speaking: asyncio.Task[None] | None = None
        try:
            await call.write(group_pb2.MemberMessage(join=self._join()))
            timeout_s = (await self._read(call, FIRST_PATIENCE_S)).welcome.timeout_s
            if not timeout_s > 0:
                raise StreamLost("its first message was no welcome")
            self._loss = ""
            self._news.begin(self.epoch)
            speaking = asyncio.create_task(self._speak(call, timeout_s / BEATS), name="group heartbeat")
            while True:
                message = await self._read(call, PATIENCE * timeout_s)
                if message.HasField("epoch"):
                    self._take(epoch_from_proto(message.epoch))
        except grpc.aio.AioRpcError as error:
            if error.code() in FOR_GOOD:
                raise GroupRefused(f"the rendezvous at {address} refuses us: {error.details()}") from error
            raise StreamLost(f"{address}: {error.details() or error.code().name}") from error
        except (PeerLost, TransferDeadline, asyncio.InvalidStateError) as error:
            raise StreamLost(f"{address}: {error}") from error
        finally:
            if speaking is not None:
                await self._end(speaking)
            call.cancel()

    def _join(self) -> group_pb2.JoinGroup:
        place = self._place
        return group_pb2.JoinGroup(
            group=place.group,
            life=life_to_proto(place.life),
            fingerprint=place.fingerprint,
            size=place.size,
            last_epoch=None if self._epoch is None else epoch_to_proto(self._epoch),
        )

    async def _read(self, call: Call, timeout_s: float) -> group_pb2.GroupMessage:
        """What the rendezvous says next. Raises StreamLost at the stream's end."""
        message = await next_event(call, "the rendezvous", timeout_s)
        if message is None:
            raise StreamLost("the rendezvous ended the stream")
        return message

    def _take(self, epoch: Epoch) -> None:
        """Raises StreamLost if we are not in it: then we have to join again."""
        if epoch.number < self.epoch:
            return
        if self._place.life not in epoch.lives:
            raise StreamLost(f"epoch {epoch.number} is without us")
        self._epoch = epoch
        self._wakes.keep(epoch.lives)
        rank = epoch.lives.index(self._place.life)
        view = GroupView(epoch.number, epoch.members, rank, epoch.store)
        self._newest.show(view)
        if self._listener is not None:
            self._listener(view)

    async def _speak(self, call: Call, heartbeat_s: float) -> None:
        """Tells our news, and that we live; at our leave, that there is nothing more to come."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # who reads hears of it too
            while not self._is_leaving:
                for message in await self._news.take(heartbeat_s) or [group_pb2.MemberMessage()]:
                    await call.write(message)
            await call.done_writing()

    def _note_loss(self, reason: str) -> None:
        """Says it once, however often we try to join again."""
        if reason != self._loss and not self._is_leaving:
            logger.warning("no stream to the rendezvous: %s", reason)
        self._loss = reason

    async def _end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
