"""A member of an expert-parallel group whose engine is busy."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast

import grpc

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.membership.rendezvous.wakes import GroupPeerService
from baton.protos import group_pb2, group_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.malformed import RefuseMalformed
from baton.worker.config import WorkerConfig
from baton.worker.expert_group import WorkerGroup
from tests.unit.membership.rendezvous.rendezvous_rig import members_of, rendezvous, wait_all

CONFIG = WorkerConfig(
    role="decode", worker_id="r-0", engine=EngineConfig(model="m"), expert_parallel=2, rendezvous="127.0.0.1:1"
)


class BusyEngine:
    """An engine that takes calls only when the test wants it to."""

    def __init__(self) -> None:
        self.calls: list[Callable[[Engine], None]] = []
        self.wakes: list[tuple[int, int]] = []

    def woken(self, epoch: int, round_number: int) -> None:
        self.wakes.append((epoch, round_number))

    def take_calls(self) -> list[tuple[int, int]]:
        """Run the queued calls; returns the wakes that they were."""
        self.wakes = []
        calls, self.calls[:] = self.calls[:], []
        for call in calls:
            call(cast(Engine, self))
        return self.wakes


@dataclass(frozen=True, slots=True)
class BusyMember:
    """A member whose engine is busy, and a peer's channel to it."""

    group: WorkerGroup
    engine: BusyEngine
    channel: grpc.aio.Channel

    async def wake(self, epoch: int, round_number: int) -> None:
        """Send a wake, as a peer does."""
        request = group_pb2.WakeRequest(group="g", incarnation="1", epoch=epoch, round_number=round_number)
        await group_pb2_grpc.GroupPeerStub(self.channel).Wake(request)


@asynccontextmanager
async def busy_member() -> AsyncIterator[BusyMember]:
    """Yield the only member of group `g`, whose incarnation is `1`."""
    async with rendezvous() as (_, address), members_of(address) as members:
        member = members.join("r-0", 1)
        await wait_all([member], ["r-0"])
        group, engine = WorkerGroup(CONFIG, member), BusyEngine()
        member.listen(group.on_view)
        group.attach(engine.calls.append)
        assert engine.take_calls() == [(member.epoch, 0)]
        server = grpc.aio.server(interceptors=[RefuseMalformed()], options=SERVER_OPTIONS)
        group_pb2_grpc.add_GroupPeerServicer_to_server(GroupPeerService("g", "1", group.woken), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield BusyMember(group, engine, channel)
        await server.stop(None)
