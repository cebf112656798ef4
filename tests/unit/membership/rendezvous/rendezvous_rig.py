"""A rendezvous in this process, and members of its groups, for tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import grpc

from baton.engine.parallel.group_view import GroupView
from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.epoch import Life
from baton.membership.rendezvous.member import GroupMember, Place
from baton.membership.rendezvous.rendezvous_address import FixedAddress
from baton.membership.rendezvous.service import RendezvousService
from baton.protos import group_pb2, group_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.peers import Channels
from baton.rpc.tls import Plaintext

PATIENCE_S = 20.0
DEFAULTS = RendezvousSettings()


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    """Return once the condition holds."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, "the condition was not met in time"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def rendezvous(
    settings: RendezvousSettings = DEFAULTS, port: int = 0
) -> AsyncIterator[tuple[RendezvousService, str]]:
    """Yield a rendezvous and its address."""
    server = grpc.aio.server(interceptors=[RefuseMalformed()], options=SERVER_OPTIONS)
    service = RendezvousService(settings)
    group_pb2_grpc.add_RendezvousServicer_to_server(service, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    looking = asyncio.create_task(service.run())
    await server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        service.close()
        await server.stop(0.5)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


class Members:
    """Members without engines; tests read their views."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channels = Channels(Plaintext())
        self._all: list[GroupMember] = []

    def join(self, name: str, size: int, group: str = "g", life: str = "1", fingerprint: str = "f") -> GroupMember:
        """Return a started member."""
        place = Place(group, Life(name, life, "127.0.0.1:1"), size)
        member = GroupMember(FixedAddress(self.address), place, Plaintext(), self.channels)
        self._all.append(member)
        member.start(fingerprint)
        return member

    async def close(self) -> None:
        """Close all members."""
        await asyncio.gather(*(member.close() for member in self._all))
        await self.channels.close()


@asynccontextmanager
async def members_of(address: str) -> AsyncIterator[Members]:
    """Yield members, which are closed at the end."""
    members = Members(address)
    try:
        yield members
    finally:
        await members.close()


def view_of(member: GroupMember) -> GroupView:
    """Return a member's newest view."""
    view = member.wait(None, 0)
    assert view is not None
    return view


def names_of(member: GroupMember) -> list[str]:
    """Return the names in a member's newest view; none before the first."""
    view = member.wait(None, 0)
    return [] if view is None else [each.partition("/")[0] for each in view.members]


async def wait_all(members: Sequence[GroupMember], names: Sequence[str], after: int = 0) -> int:
    """Return the epoch once all members have the same one, later than `after`, with these names."""
    await until(
        lambda: (
            all(names_of(member) == list(names) and member.epoch > after for member in members)
            and len({member.epoch for member in members}) == 1
        )
    )
    return members[0].epoch


class Stream:
    """A raw stream to the rendezvous, also for invalid messages."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = group_pb2_grpc.RendezvousStub(channel).Join()  # type: ignore[call-arg]

    async def join(self, **fields: object) -> None:
        """Send a join that is valid except for `fields`."""
        await self.call.write(join_message(**fields))

    async def epoch(self) -> group_pb2.Epoch:
        """Return the next epoch."""
        while True:
            message = await self.read()
            if message.HasField("epoch"):
                return message.epoch

    async def read(self) -> group_pb2.GroupMessage:
        """Return the next message."""
        message = await asyncio.wait_for(self.call.read(), PATIENCE_S)
        assert isinstance(message, group_pb2.GroupMessage), message
        return message

    async def refusal(self) -> tuple[grpc.StatusCode, str]:
        """Return the status with which the call ends; earlier messages are skipped."""
        with suppress(grpc.aio.AioRpcError):
            while await asyncio.wait_for(self.call.read(), PATIENCE_S) is not grpc.aio.EOF:
                pass
        code = await asyncio.wait_for(self.call.code(), PATIENCE_S)
        return code, await self.call.details()


def join_message(**fields: object) -> group_pb2.MemberMessage:
    """Return a join that is valid except for `fields`."""
    good: dict[str, object] = {"group": "g", "life": life("a"), "fingerprint": "f", "size": 1}
    return group_pb2.MemberMessage(join=group_pb2.JoinGroup(**{**good, **fields}))  # type: ignore[arg-type]


def life(name: str, incarnation: str = "1", address: str = "127.0.0.1:1") -> group_pb2.Life:
    """Return a life's message."""
    return group_pb2.Life(name=name, incarnation=incarnation, address=address)
