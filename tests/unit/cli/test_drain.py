"""Drains that are refused, and the workers of a host."""

from pathlib import Path

import pytest
from redis.asyncio import Redis

from baton.cli.drain import LastWorker, check_others_serve
from baton.cli.options.worker_addresses import KnownWorker, host_workers
from baton.membership.registry.factory import open_registry
from tests.redis_server import HOST, redis_server
from tests.unit.membership.registry.registry_members import following, kept, make_member


def worker(name: str, takes_requests: bool = True, model: str = "m") -> KnownWorker:
    """Return a worker whose name begins with its role."""
    return KnownWorker(name, f"{name}:1", model, name.partition("-")[0], takes_requests)


@pytest.mark.parametrize(
    ("others", "leaving", "is_refused"),
    [
        ([], ["decode-0"], True),
        ([worker("decode-1")], ["decode-0"], False),
        ([worker("both-1")], ["decode-0"], False),
        ([worker("decode-1")], ["both-0"], False),
        ([worker("prefill-1")], ["both-0"], True),
        ([worker("prefill-1")], ["decode-0"], True),
        ([worker("decode-1", takes_requests=False)], ["decode-0"], True),
        ([worker("decode-1", model="other")], ["decode-0"], True),
        ([worker("decode-1")], ["decode-0", "decode-1"], True),
        ([worker("decode-1")], ["prefill-0"], True),
    ],
)
def test_drain_refuses_the_last_worker_of_a_role(
    others: list[KnownWorker], leaving: list[str], is_refused: bool
) -> None:
    workers = [*others, *(worker(each) for each in leaving if each not in {other.name for other in others})]
    addresses = [f"{each}:1" for each in leaving]
    if is_refused:
        with pytest.raises(LastWorker, match="--force drains it anyway; `baton undrain") as refusal:
            check_others_serve(workers, addresses)
        assert refusal.value.exit_code == 3
    else:
        check_others_serve(workers, addresses)


def test_a_refused_change_of_role_names_no_undrain() -> None:
    with pytest.raises(LastWorker, match=r"--force changes it anyway$"):
        check_others_serve([worker("decode-0")], ["decode-0:1"], "changes")


def test_a_worker_that_no_longer_serves_may_be_drained_again() -> None:
    check_others_serve([worker("decode-0", takes_requests=False)], ["decode-0:1"])


async def test_workers_are_found_that_a_restarted_registry_does_not_list_yet(tmp_path: Path) -> None:
    file, member = tmp_path / "url", make_member(address="10.0.0.1:7000")
    async with redis_server(tmp_path / "redis") as server:
        file.write_text(server.url)
        registry = open_registry(server.url)
        async with following(registry) as views, kept(registry.lease(member, 10)):
            await views.until_members(member)
            async with Redis(host=HOST, port=server.port) as client:
                await client.flushall()
            workers, found = await host_workers(file, "10.0.0.1")
        await registry.close()
    assert [each.name for each in workers] == ["decode-0"]
    assert found == {"decode-0@10.0.0.1:7000": "10.0.0.1:7000"}
