"""The rendezvous: groups, and the streams of their members."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.group import Group
from baton.membership.rendezvous.join import Refused, check_address, read_join
from baton.membership.rendezvous.member_session import MemberSession
from baton.protos import group_pb2, group_pb2_grpc
from baton.rpc.peers import Context

logger = logging.getLogger(__name__)

LOOKS = 10  # for silent members, within the time after which they are out


class RendezvousService(group_pb2_grpc.RendezvousServicer):
    """Owns the groups."""

    def __init__(self, settings: RendezvousSettings) -> None:
        self._settings = settings
        self._groups: dict[str, Group] = {}
        self._is_closed = False

    @property
    def num_groups(self) -> int:
        """Groups that are known."""
        return len(self._groups)

    @property
    def num_members(self) -> int:
        """Members that are there, of all groups."""
        return sum(group.num_members for group in self._groups.values())

    async def run(self) -> None:
        """Ends the membership of who is silent, and forgets groups that nobody is in; until cancelled."""
        now_s = asyncio.get_running_loop().time
        pause_s = self._settings.timeout_s / LOOKS
        while True:
            due_s = now_s() + pause_s
            await asyncio.sleep(pause_s)
            late_s = max(now_s() - due_s, 0.0)
            for name, group in list(self._groups.items()):
                group.look(late_s)
                if group.is_forgotten:
                    del self._groups[name]

    async def Join(  # noqa: N802  # the service's name
        self, request_iterator: AsyncIterator[group_pb2.MemberMessage], context: Context
    ) -> AsyncIterator[group_pb2.GroupMessage]:
        """A membership: news in, epochs out."""
        try:
            group, session = self._seat(await self._read_first(request_iterator))
        except Refused as refusal:
            await context.abort(refusal.code, str(refusal))
        reading = asyncio.create_task(self._read(request_iterator, group, session))
        try:
            yield group_pb2.GroupMessage(welcome=group_pb2.Welcome(timeout_s=self._settings.timeout_s))
            async for message in session.messages():
                yield message
        finally:
            group.remove(session)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)  # what it failed with is the stream's end
        if session.end is not None:
            await context.abort(session.end.code, str(session.end))

    def close(self) -> None:
        """Members are told to go elsewhere, and to new ones the same is said."""
        self._is_closed = True
        for group in self._groups.values():
            group.close()

    async def _read_first(self, messages: AsyncIterator[group_pb2.MemberMessage]) -> group_pb2.JoinGroup:
        """The stream's first message. Raises Refused if it is no join, or does not come."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                first = await anext(messages, None)
        except TimeoutError:
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "no join came in time") from None
        if first is None or not first.HasField("join"):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be a join")
        return first.join

    def _seat(self, message: group_pb2.JoinGroup) -> tuple[Group, MemberSession]:
        """Raises Refused."""
        join = read_join(message, self._settings)
        if self._is_closed:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the rendezvous ends")
        group = self._groups.get(join.group)
        if group is None:
            limit = self._settings.max_groups
            if len(self._groups) >= limit:
                raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the rendezvous has its {limit} groups already")
            group = self._groups[join.group] = Group(join.group, self._settings)
        return group, group.admit(join)

    async def _read(
        self, messages: AsyncIterator[group_pb2.MemberMessage], group: Group, session: MemberSession
    ) -> None:
        """Hears a member until it has nothing more to say, which is its leave."""
        now_s = asyncio.get_running_loop().time
        end: Refused | None = None
        try:
            async for message in messages:
                session.hear(now_s())
                _take(message, group, session)
        except Refused as refusal:
            end = refusal
        finally:
            group.remove(session, end)


def _take(message: group_pb2.MemberMessage, group: Group, session: MemberSession) -> None:
    """Raises Refused for what a member cannot say."""
    kind = message.WhichOneof("kind")
    if kind == "join":
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "only the first message may be a join")
    if kind == "store":
        check_address("store.address", message.store.address)
        group.set_store(session, message.store.epoch, message.store.address)
    elif kind == "broken":
        group.note_broken(session, message.broken.epoch, message.broken.reason)
