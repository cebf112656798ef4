"""A group whose rendezvous moves, with its address in the registry."""

import asyncio
import sys
from pathlib import Path

import pytest

from baton.deployment.local.ports import free_ports
from baton.membership.registry.factory import open_address
from baton.membership.rendezvous.rendezvous_address import KIND
from baton.process.child import ChildProcess
from tests.integration.membership.group_member_process import REGISTRY, member_processes
from tests.integration.membership.test_rendezvous import NAMES, end, start_rendezvous, wait_all
from tests.redis_server import HOST, redis_server

NAME = "pools"


@pytest.mark.slow
async def test_members_follow_their_rendezvous_from_place_to_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rendezvous ends, is killed, and is succeeded while it runs: no member and no event is lost."""
    async with redis_server(tmp_path / "redis") as redis:
        monkeypatch.setenv(REGISTRY, redis.url)
        ports = free_ports(HOST, 4)

        async def start(number: int) -> ChildProcess:
            directory = tmp_path / str(number)
            directory.mkdir()
            return await start_rendezvous(directory, ports[number], f"--registry={redis.url}", f"--name={NAME}")

        async with member_processes(f"registry/{NAME}", NAMES[:3], 3) as members:
            first = await start(0)
            epoch, _ = await wait_all(members, NAMES[:3])
            await end(first, tmp_path / "0")
            await assert_place(redis.url, None)
            second = await start(1)
            members[0].tell("broken")
            again, _ = await wait_all(members, NAMES[:3], epoch)
            assert again == epoch + 1  # no member was lost meanwhile

            await end(second, tmp_path / "1", kill=True)
            await assert_place(redis.url, ports[1])  # until its lease expires
            third = await start(2)
            members[2].process.kill()
            rest = members[:2]
            epoch, _ = await wait_all(rest, NAMES[:2], again)

            fourth = await start(3)
            assert await asyncio.wait_for(third.wait(), 20) == 1
            third.close()
            log = (tmp_path / "2" / "rendezvous.log").read_text()
            assert f"is {HOST}:{ports[3]} now; each needs a name of its own" in log
            assert "Traceback" not in log
            members[1].tell("broken")
            again, _ = await wait_all(rest, NAMES[:2], epoch)
            assert again == epoch + 1
        await end(fourth, tmp_path / "3")


async def assert_place(registry: str, port: int | None) -> None:
    """Check the port of the rendezvous in the registry."""
    entry = open_address(registry, KIND, NAME)
    assert await entry.find() == (None if port is None else f"{HOST}:{port}")
    await entry.close()


async def test_a_terminated_rendezvous_serves_until_its_members_have_left(tmp_path: Path) -> None:
    [port] = free_ports(HOST, 1)
    child = await start_rendezvous(tmp_path, port, "--drain-timeout-s=60")
    async with member_processes(f"{HOST}:{port}", NAMES[:2], 2) as members:
        epoch, _ = await wait_all(members, NAMES[:2])
        child.terminate()
        members[0].tell("broken")
        await wait_all(members, NAMES[:2], epoch)
        members[1].tell("leave")
        await wait_all(members[:1], NAMES[:1], epoch + 1)
        members[0].tell("leave")
        assert await asyncio.wait_for(child.wait(), 10) == 0
    child.close()


async def test_a_terminated_rendezvous_does_not_wait_forever(tmp_path: Path) -> None:
    [port] = free_ports(HOST, 1)
    child = await start_rendezvous(tmp_path, port, "--drain-timeout-s=0.5")
    async with member_processes(f"{HOST}:{port}", NAMES[:2], 2) as members:
        epoch, _ = await wait_all(members, NAMES[:2])
        await end(child, tmp_path)
        assert {member.epoch for member in members} == {epoch}


async def test_an_unreachable_address_is_refused() -> None:
    for flag, words in (
        ("--host=0.0.0.0", "host: members cannot reach 0.0.0.0"),
        ("--name=a b", "name: must be 1 to 128 visible ASCII characters"),
    ):
        argv = (sys.executable, "-m", "baton.membership.rendezvous", "--registry=redis://127.0.0.1:1", flag)
        process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
        _, text = await asyncio.wait_for(process.communicate(), 30)
        assert process.returncode == 2
        assert words in text.decode()
