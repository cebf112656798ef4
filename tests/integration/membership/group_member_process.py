"""Group members as processes: an engine's thread that waits for views, and a server that is woken."""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from baton.engine.parallel.group_view import GroupView
from baton.membership.rendezvous.epoch import Life
from baton.membership.rendezvous.member import GroupMember, Place
from baton.membership.rendezvous.rendezvous_address import rendezvous_address
from baton.membership.rendezvous.wakes import GroupPeerService
from baton.protos import group_pb2_grpc
from baton.rpc.peers import Channels
from baton.rpc.tls import make_security

PATIENCE_S = 30.0
REGISTRY = "MEMBERS_REGISTRY"  # environment variable: URL of the registry with the rendezvous' address


def say(**fields: object) -> None:
    """Print one JSON line with the machine's monotonic time."""
    sys.stdout.write(json.dumps({"at_s": time.monotonic(), **fields}) + "\n")
    sys.stdout.flush()


def follow(member: GroupMember) -> None:
    """Follow the views as an engine's thread does: the first member opens a store, all wait for newer views."""
    seen: GroupView | None = None
    while True:
        view = member.wait(seen, 5)
        if view is not None:
            seen = view
            names = [each.partition("/")[0] for each in view.members]
            say(epoch=view.epoch, names=names, rank=view.rank, store=view.store)
            if view.rank == 0 and not view.store:
                member.publish_store(view.epoch, f"127.0.0.1:{view.epoch + 1}")


async def run(rendezvous: str, group: str, name: str, incarnation: str, size: int, *tls: str) -> None:
    """Run a member that reads commands from standard input, until it ends."""
    security = make_security(*(tls or (None,) * 4))
    server = grpc.aio.server()
    heard = GroupPeerService(group, incarnation, lambda epoch, number: say(woken=[epoch, number]) is None)
    group_pb2_grpc.add_GroupPeerServicer_to_server(heard, server)
    port = security.bind(server, "127.0.0.1:0")
    await server.start()
    channels = Channels(security)
    place = Place(group, Life(name, incarnation, f"127.0.0.1:{port}"), size)
    member = GroupMember(rendezvous_address(rendezvous, os.environ.get(REGISTRY)), place, security, channels)
    member.start("f")
    threading.Thread(target=follow, args=(member,), daemon=True).start()
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while words := (await lines.readline()).decode().split():
        if words[0] == "leave":
            await member.leave()
            say(left=True)
        elif words[0] == "broken":
            member.report_broken(member.epoch, "as told")
        elif words[0] == "wake":
            member.wake(member.epoch, int(words[1]))
    await member.close()
    await server.stop(None)
    await channels.close()


class MemberProcess:
    """A started member and its output."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name
        self.output: list[dict[str, Any]] = []
        self._news = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, rendezvous: str, name: str, size: int, group: str = "g", life: str = "1", tls: Sequence[str] = ()
    ) -> "MemberProcess":
        """Start a member's process."""
        argv = (
            sys.executable,
            "-m",
            "tests.integration.membership.group_member_process",
            rendezvous,
            group,
            name,
            life,
        )
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*argv, str(size), *tls, stdin=pipe, stdout=pipe)
        return cls(process, name)

    def tell(self, command: str) -> None:
        """Send a command to the member."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    @property
    def views(self) -> list[dict[str, Any]]:
        """Views that the member has received."""
        return [each for each in self.output if "epoch" in each]

    @property
    def epoch(self) -> int:
        """Newest epoch that the member has received; 0 before the first."""
        return int(self.views[-1]["epoch"]) if self.views else 0

    async def wait_view(self, names: Sequence[str], after: int = 0, store: bool = True) -> dict[str, Any]:
        """Wait for the first view after epoch `after` with these members and a store."""

        def found() -> list[dict[str, Any]]:
            views = [view for view in self.views if view["epoch"] > after and view["names"] == list(names)]
            return [view for view in views if bool(view["store"]) or not store]

        await self._wait(lambda: bool(found()))
        return found()[0]

    async def wait_woken(self) -> dict[str, Any]:
        """Wait for the first wake."""
        await self._wait(lambda: any("woken" in each for each in self.output))
        return next(each for each in self.output if "woken" in each)

    async def wait_left(self) -> None:
        """Wait until the member has left the group."""
        await self._wait(lambda: any("left" in each for each in self.output))

    async def end(self) -> None:
        """End the process, gracefully if it runs."""
        assert self.process.stdin is not None
        if self.process.returncode is None:
            self.process.stdin.close()
        status = await asyncio.wait_for(self.process.wait(), PATIENCE_S)
        await self._reading
        assert status in (0, -9), f"{self.name} ended with {status}"

    async def _wait(self, condition: Any) -> None:
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(condition), PATIENCE_S)

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            async with self._news:
                self.output.append(json.loads(line))
                self._news.notify_all()


@asynccontextmanager
async def member_processes(
    rendezvous: str, names: Sequence[str], size: int, group: str = "g", tls: Sequence[str] = ()
) -> AsyncIterator[list[MemberProcess]]:
    """Start members of a group; members appended to the list are ended too."""
    members = [await MemberProcess.start(rendezvous, name, size, group, tls=tls) for name in names]
    try:
        yield members
    finally:
        await asyncio.gather(*(member.end() for member in members))


if __name__ == "__main__":
    rendezvous, group, name, incarnation, size, *tls = sys.argv[1:]
    asyncio.run(run(rendezvous, group, name, incarnation, int(size), *tls))
