"""The Rendezvous service: groups and the streams of their members."""

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

CHECKS_PER_TIMEOUT = 10  # checks for silent members


class RendezvousService(group_pb2_grpc.RendezvousServicer):
    """The Rendezvous service, with all groups."""

    def __init__(self, settings: RendezvousSettings) -> None:
        self._settings = settings
        self._groups: dict[str, Group] = {}
        self._is_closed = False

    @property
    def num_groups(self) -> int:
        """Number of groups."""
        return len(self._groups)

    @property
    def num_members(self) -> int:
        """Number of members of all groups."""
        return sum(group.num_members for group in self._groups.values())

    async def run(self) -> None:
        """Remove silent members and drop groups without members, until cancelled."""
        now_s = asyncio.get_running_loop().time
        pause_s = self._settings.timeout_s / CHECKS_PER_TIMEOUT
        while True:
            due_s = now_s() + pause_s
            await asyncio.sleep(pause_s)
            late_s = max(now_s() - due_s, 0.0)
            for name, group in list(self._groups.items()):
                group.remove_silent(late_s)
                if group.is_expired:
                    del self._groups[name]

    async def Join(  # noqa: N802  # the service's name
        self, request_iterator: AsyncIterator[group_pb2.MemberMessage], context: Context
    ) -> AsyncIterator[group_pb2.GroupMessage]:
        """Run one membership: receive reports and heartbeats, stream epochs."""
        try:
            group, session = self._admit(await self._read_first(request_iterator))
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
            await asyncio.gather(reading, return_exceptions=True)  # its error, if any, is the end of the stream
        if session.end is not None:
            await context.abort(session.end.code, str(session.end))

    def close(self) -> None:
        """Close all sessions, and refuse new members, with UNAVAILABLE."""
        self._is_closed = True
        for group in self._groups.values():
            group.close()

    async def _read_first(self, messages: AsyncIterator[group_pb2.MemberMessage]) -> group_pb2.JoinGroup:
        """Return the stream's join. Raises Refused if the first message is another one, or late."""
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                first = await anext(messages, None)
        except TimeoutError:
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, "no join message in time") from None
        if first is None or not first.HasField("join"):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be a join")
        return first.join

    def _admit(self, message: group_pb2.JoinGroup) -> tuple[Group, MemberSession]:
        """Return the group and the new session. Raises Refused."""
        join = read_join(message, self._settings)
        if self._is_closed:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "the rendezvous is shutting down")
        group = self._groups.get(join.group)
        if group is None:
            limit = self._settings.max_groups
            if len(self._groups) >= limit:
                raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the rendezvous is full with {limit} groups")
            group = self._groups[join.group] = Group(join.group, self._settings)
        return group, group.admit(join)

    async def _read(
        self, messages: AsyncIterator[group_pb2.MemberMessage], group: Group, session: MemberSession
    ) -> None:
        """Handle a member's messages until it closes its side of the stream, which means that it leaves."""
        now_s = asyncio.get_running_loop().time
        end: Refused | None = None
        try:
            async for message in messages:
                session.note_heartbeat(now_s())
                _handle(message, group, session)
        except Refused as refusal:
            end = refusal
        finally:
            group.remove(session, end)


def _handle(message: group_pb2.MemberMessage, group: Group, session: MemberSession) -> None:
    """Apply a member's message. Raises Refused if it is invalid."""
    kind = message.WhichOneof("kind")
    if kind == "join":
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "only the first message may be a join")
    if kind == "store":
        check_address("store.address", message.store.address)
        group.set_store(session, message.store.epoch, message.store.address)
    elif kind == "broken":
        group.note_broken(session, message.broken.epoch, message.broken.reason)
