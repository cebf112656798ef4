"""Groups of real processes with a real rendezvous: deaths, hangs, leaves and returns, and their detection times."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from baton.deployment.local.ports import free_ports
from baton.process.child import ChildProcess, ProcessSpec
from baton.process.progress import Failed, Ready
from tests.integration.membership.group_member_process import MemberProcess, member_processes
from tests.unit.rpc.test_tls import NAME, write

NAMES = ["r-0", "r-2", "r-10", "r-11"]
TIMEOUT_S = 1.0  # the rendezvous' default


async def start_rendezvous(directory: Path, port: int, *flags: str) -> ChildProcess:
    """Start `baton rendezvous` and wait until it is ready."""
    argv = (sys.executable, "-m", "baton", "rendezvous", f"--port={port}", *flags)
    child = await ChildProcess.start(ProcessSpec("rendezvous", argv, directory / "rendezvous.log"))
    async for progress in child.progress():
        assert not isinstance(progress, Failed), progress
        if isinstance(progress, Ready):
            assert progress.address == f"127.0.0.1:{port}"
            return child
    raise AssertionError((directory / "rendezvous.log").read_text())


async def end(child: ChildProcess, directory: Path, kill: bool = False) -> None:
    """End it, by SIGTERM or by SIGKILL."""
    if kill:
        child.kill()
    else:
        child.terminate()
    assert await asyncio.wait_for(child.wait(), 10) == (-signal.SIGKILL if kill else 0)
    child.close()
    assert "Traceback" not in (directory / "rendezvous.log").read_text()


@asynccontextmanager
async def rendezvous(directory: Path, *flags: str) -> AsyncIterator[str]:
    """Run a rendezvous and yield its address."""
    [port] = free_ports("127.0.0.1", 1)
    child = await start_rendezvous(directory, port, *flags)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await end(child, directory)


async def wait_all(members: Sequence[MemberProcess], names: Sequence[str], after: int = 0) -> tuple[int, float]:
    """Wait for an epoch with all members; return it and the time when the last member received it."""
    views = await asyncio.gather(*(member.wait_view(names, after, store=False) for member in members))
    stores = await asyncio.gather(*(member.wait_view(names, after) for member in members))
    assert [view["rank"] for view in views] == [list(names).index(member.name) for member in members]
    assert len({view["epoch"] for view in views}) == 1
    assert {view["store"] for view in stores} == {f"127.0.0.1:{views[0]['epoch'] + 1}"}
    return views[0]["epoch"], max(view["at_s"] for view in views)


def assert_none_goes_back(members: Sequence[MemberProcess]) -> None:
    """Check that epochs grow at every member, and that members agree on each epoch."""
    lists: dict[int, list[str]] = {}
    for member in members:
        epochs = [view["epoch"] for view in member.views]
        assert epochs == sorted(epochs)
        for view in member.views:
            assert lists.setdefault(view["epoch"], view["names"]) == view["names"]


async def test_members_that_die_hang_or_leave_are_removed_and_may_return(tmp_path: Path) -> None:
    async with rendezvous(tmp_path) as address, member_processes(address, NAMES, 4) as members:
        epoch, _ = await wait_all(members, NAMES)
        assert epoch == 1

        killed_s = time.monotonic()
        members[1].process.kill()
        rest = [members[0], *members[2:]]
        epoch, known_s = await wait_all(rest, ["r-0", "r-10", "r-11"], epoch)
        assert known_s - killed_s < 1.0

        members.append(await MemberProcess.start(address, "r-2", 4, life="2"))
        four = [members[0], members[4], *members[2:4]]
        epoch, _ = await wait_all(four, NAMES, epoch)

        stopped_s = time.monotonic()
        os.kill(members[0].process.pid, signal.SIGSTOP)
        epoch, known_s = await wait_all(four[1:], NAMES[1:], epoch)
        assert known_s - stopped_s < TIMEOUT_S + 0.5
        os.kill(members[0].process.pid, signal.SIGCONT)
        epoch, _ = await wait_all(four, NAMES, epoch)

        left_s = time.monotonic()
        members[3].tell("leave")
        await members[3].wait_left()
        epoch, known_s = await wait_all(four[:3], NAMES[:3], epoch)
        assert known_s - left_s < 0.5

        four[2].tell("broken")
        again, _ = await wait_all(four[:3], NAMES[:3], epoch)
        assert again == epoch + 1
        assert_none_goes_back(members)


async def test_a_wake_reaches_the_other_process(tmp_path: Path) -> None:
    async with rendezvous(tmp_path) as address, member_processes(address, NAMES[:3], 3) as members:
        epoch, _ = await wait_all(members, NAMES[:3])
        members[1].tell("wake 7")
        for member in (members[0], members[2]):
            assert (await member.wait_woken())["woken"] == [epoch, 7]


@pytest.mark.slow
async def test_the_group_outlives_its_rendezvous(tmp_path: Path) -> None:
    """A restart or a pause of the rendezvous ends no epoch; afterwards it learns of losses and starts the next."""
    [port] = free_ports("127.0.0.1", 1)
    address = f"127.0.0.1:{port}"
    first = await start_rendezvous(tmp_path, port)
    async with member_processes(address, NAMES, 4) as members:
        epoch, _ = await wait_all(members, NAMES)
        await end(first, tmp_path)
        second = await start_rendezvous(tmp_path, port)
        members[1].tell("wake 1")
        await asyncio.gather(*(members[number].wait_woken() for number in (0, 2, 3)))
        await asyncio.sleep(2.0)  # longer than its wait for returning members
        assert {member.epoch for member in members} == {epoch}

        await end(second, tmp_path, kill=True)
        members[3].process.kill()
        third = await start_rendezvous(tmp_path, port)
        epoch, _ = await wait_all(members[:3], NAMES[:3], epoch)

        os.kill(third.pid, signal.SIGSTOP)
        await asyncio.sleep(4.0)  # until its members give up
        os.kill(third.pid, signal.SIGCONT)
        await asyncio.sleep(2.0)
        assert {member.epoch for member in members[:3]} == {epoch}
        members[0].tell("broken")
        epoch, _ = await wait_all(members[:3], NAMES[:3], epoch)
        assert_none_goes_back(members)
        await end(third, tmp_path)


async def test_its_process_is_healthy_secure_and_without_torch(tmp_path: Path) -> None:
    files = write(tmp_path / "tls", trustme.CA())
    flags = (f"--tls-cert={files.cert}", f"--tls-key={files.key}", f"--tls-ca={files.ca}", f"--tls-server-name={NAME}")
    tls = (files.cert, files.key, files.ca, NAME)
    async with rendezvous(tmp_path) as address, grpc.aio.insecure_channel(address) as channel:
        asked = health_pb2.HealthCheckRequest(service="baton.v1.Rendezvous")
        answer = await health_pb2_grpc.HealthStub(channel).Check(asked, timeout=10)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    async with (
        rendezvous(tmp_path, *flags) as address,
        member_processes(address, NAMES[:2], 2, tls=tls) as members,
        member_processes(address, NAMES[2:3], 1, group="h") as strangers,
    ):
        await wait_all(members, NAMES[:2])
        members[0].tell("wake 1")
        await members[1].wait_woken()
        assert not strangers[0].output
    modules = (
        "baton.membership.rendezvous.app, baton.membership.rendezvous.__main__, baton.membership.rendezvous.member"
    )
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


async def test_a_port_in_use_and_a_wrong_option_are_reported(tmp_path: Path) -> None:
    async with rendezvous(tmp_path) as address:
        for flags, words in (
            ((f"--port={address.rpartition(':')[2]}",), "cannot go on"),
            (("--timeout-s=0",), "must be a number from 0.1 to 600"),
        ):
            pipe = asyncio.subprocess.PIPE
            argv = (sys.executable, "-m", "baton.membership.rendezvous", *flags)
            process = await asyncio.create_subprocess_exec(*argv, stderr=pipe)
            _, text = await asyncio.wait_for(process.communicate(), 30)
            assert process.returncode in (1, 2)
            assert words in text.decode()
