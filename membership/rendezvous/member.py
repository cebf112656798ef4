"""A member of a group: a worker's stream to the rendezvous, and the Membership of its engine.

The life of a membership:

1. The member joins, receives each epoch, and sends heartbeats.
2. If the stream ends for any reason, the member joins again with the newest epoch that it knows. Meanwhile the group
   continues unchanged.
3. The membership ends when the member leaves, or when the rendezvous refuses it permanently.
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
HEARTBEATS_PER_TIMEOUT = 5  # the timeout is the rendezvous's for silent members
SILENT_TIMEOUTS = 3  # the stream is lost after this many timeouts without a message from the rendezvous
WELCOME_TIMEOUT_S = 5.0  # for the first message, which has the timeout
LEAVE_S = 1.0  # longest wait for the rendezvous to receive our leave
PERMANENT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)  # a retry would fail too

Call = grpc.aio.StreamStreamCall[group_pb2.MemberMessage, group_pb2.GroupMessage]


class GroupRefused(Exception):
    """A permanent refusal by the rendezvous; the text has the reason."""


class StreamLost(Exception):
    """A lost stream to the rendezvous; the member joins again."""


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's group and its identity there."""

    group: str
    life: Life
    size: int  # members with which the group begins


class GroupMember:
    """One worker's membership in a group; an engine's `Membership`.

    Created, started and closed on the event loop. The engine's calls may come from any thread.
    """

    def __init__(self, rendezvous: RendezvousAddress, place: Place, security: Security, channels: Channels) -> None:
        """rendezvous: resolved again before each attempt to join; channels: to the other members."""
        self.failed: asyncio.Future[None] = (
            asyncio.get_running_loop().create_future()
        )  # fails if the rendezvous refuses us
        self._loop = asyncio.get_running_loop()
        self._rendezvous = rendezvous
        self._place = place
        self._fingerprint = ""  # known once the rank has loaded
        self._security = security
        self._epoch: Epoch | None = None
        self._newest = NewestView()
        self._report = MemberReport()
        self._wakes = Wakes(channels, place.group)
        self._listener: Callable[[GroupView], None] | None = None
        self._is_leaving = False
        self._loss = ""  # reason why there is no stream
        self._run: asyncio.Task[None] | None = None

    def listen(self, listener: Callable[[GroupView], None]) -> None:
        """Call `listener` with each newer view, on the event loop."""
        self._listener = listener

    def join(self, fingerprint: str) -> None:
        """Begin to join unless already begun; callable from any thread. See Membership."""
        self._post(self.start, fingerprint)

    def start(self, fingerprint: str) -> None:
        """Begin to join unless already begun; on the event loop."""
        if self._run is not None or self._is_leaving:
            return
        self._fingerprint = fingerprint
        self._run = asyncio.create_task(self._keep(), name="group member")

    async def leave(self) -> None:
        """Leave permanently: the others continue without us, and we receive no newer epochs."""
        self._is_leaving = True
        self._report.wake()
        if self._run is not None:
            await asyncio.wait((self._run,), timeout=LEAVE_S)
            await self._end(self._run)

    async def close(self) -> None:
        """Leave, and cancel wakes in progress."""
        await self.leave()
        await self._wakes.close()
        await self._rendezvous.close()
        if not self.failed.cancel():
            self.failed.exception()  # retrieved: there may be no waiter

    @property
    def epoch(self) -> int:
        """Number of the newest epoch; 0 before the first."""
        return self._newest.epoch

    def wait(self, seen: GroupView | None, timeout_s: float) -> GroupView | None:
        """Return the newest view as soon as it differs from `seen`; None after `timeout_s`."""
        return self._newest.wait(seen, timeout_s)

    def publish_store(self, epoch: int, address: str) -> None:
        """Report the store that we have opened as the epoch's first member; sent again after a lost stream."""
        self._post(self._report.set_store, group_pb2.StoreReady(epoch=epoch, address=address))

    def report_broken(self, epoch: int, reason: str) -> None:
        """Request a new epoch."""
        self._post(self._report.set_broken, group_pb2.EpochBroken(epoch=epoch, reason=reason))

    def wake(self, epoch: int, round_number: int) -> None:
        """Wake all other members of the epoch if it is still the newest."""
        self._post(self._wake_others, epoch, round_number)

    def _post(self, function: Callable[..., object], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(function, *arguments)

    def _wake_others(self, epoch: int, round_number: int) -> None:
        if self._epoch is not None and self._epoch.number == epoch and not self._is_leaving:
            others = (life for life in self._epoch.lives if life != self._place.life)
            self._wakes.send(others, epoch, round_number)

    async def _keep(self) -> None:
        """Keep joining until we leave or are refused."""
        backoff = Backoff(FIRST_BACKOFF_S, LAST_BACKOFF_S)
        while not self._is_leaving:
            try:
                address = await self._rendezvous.find()
                async with self._security.channel(address) as channel:
                    await self._attend(channel, address)
            except (StreamLost, RendezvousUnknown) as error:
                self._note_loss(str(error))
            except Exception as error:  # any error: a worker cannot continue without its group
                self.failed.set_exception(error)
                return
            if not self._is_leaving:
                await backoff.wait()

    async def _attend(self, channel: grpc.aio.Channel, address: str) -> None:
        """Run one stream to its end. Raises StreamLost or GroupRefused."""
        call: Call = group_pb2_grpc.RendezvousStub(channel).Join()  # type: ignore[call-arg]  # written by hand
        sending: asyncio.Task[None] | None = None
        try:
            await call.write(group_pb2.MemberMessage(join=self._join()))
            timeout_s = (await self._read(call, WELCOME_TIMEOUT_S)).welcome.timeout_s
            if not timeout_s > 0:
                raise StreamLost("the first message of the rendezvous was not a welcome")
            self._loss = ""
            self._report.begin(self.epoch)
            sending = asyncio.create_task(self._send(call, timeout_s / HEARTBEATS_PER_TIMEOUT), name="group heartbeat")
            while True:
                message = await self._read(call, SILENT_TIMEOUTS * timeout_s)
                if message.HasField("epoch"):
                    self._set_epoch(epoch_from_proto(message.epoch))
        except grpc.aio.AioRpcError as error:
            if error.code() in PERMANENT:
                raise GroupRefused(f"the rendezvous at {address} refuses us: {error.details()}") from error
            raise StreamLost(f"{address}: {error.details() or error.code().name}") from error
        except (PeerLost, TransferDeadline, asyncio.InvalidStateError) as error:
            raise StreamLost(f"{address}: {error}") from error
        finally:
            if sending is not None:
                await self._end(sending)
            call.cancel()

    def _join(self) -> group_pb2.JoinGroup:
        place = self._place
        return group_pb2.JoinGroup(
            group=place.group,
            life=life_to_proto(place.life),
            fingerprint=self._fingerprint,
            size=place.size,
            last_epoch=None if self._epoch is None else epoch_to_proto(self._epoch),
        )

    async def _read(self, call: Call, timeout_s: float) -> group_pb2.GroupMessage:
        """Return the next message of the rendezvous. Raises StreamLost at the stream's end."""
        message = await next_event(call, "the rendezvous", timeout_s)
        if message is None:
            raise StreamLost("the rendezvous ended the stream")
        return message

    def _set_epoch(self, epoch: Epoch) -> None:
        """Set a newer epoch. Raises StreamLost if we are not in it, since we then have to join again."""
        if epoch.number < self.epoch:
            return
        if self._place.life not in epoch.lives:
            raise StreamLost(f"epoch {epoch.number} does not include this member")
        self._epoch = epoch
        self._wakes.keep(epoch.lives)
        rank = epoch.lives.index(self._place.life)
        view = GroupView(epoch.number, epoch.members, rank, epoch.store)
        self._newest.show(view)
        if self._listener is not None:
            self._listener(view)

    async def _send(self, call: Call, heartbeat_s: float) -> None:
        """Send reports and heartbeats; close our side of the stream when we leave."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader gets it too
            while not self._is_leaving:
                for message in await self._report.take(heartbeat_s) or [group_pb2.MemberMessage()]:
                    await call.write(message)
            await call.done_writing()

    def _note_loss(self, reason: str) -> None:
        """Log a lost stream once per reason, however often joining fails."""
        if reason != self._loss and not self._is_leaving:
            logger.warning("no stream to the rendezvous: %s", reason)
        self._loss = reason

    async def _end(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
