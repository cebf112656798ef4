"""Each fault of a supervised process once, and a router that cannot start for a while."""

import asyncio
import random
import socket
from pathlib import Path

import psutil
import pytest
from _pytest.mark.structures import ParameterSet

from tests.faults.supervised import FLAGS, SUPERVISED_FAULTS, SupervisedFault, served_cluster

SEED = 7
NUM_FAILURES = 4  # failed starts; a cluster that was never ready would not survive as many


def _cases() -> list[ParameterSet]:
    return [pytest.param(each, marks=pytest.mark.slow, id=each.__name__) for each in SUPERVISED_FAULTS]


@pytest.mark.parametrize("fault", _cases())
async def test_the_cluster_continues_to_serve(tmp_path: Path, fault: SupervisedFault) -> None:
    async with served_cluster(tmp_path, *FLAGS) as cluster:
        await fault(cluster, random.Random(SEED))
        assert await cluster.complete() == 200


@pytest.mark.slow
async def test_a_router_recovers_once_its_port_is_free_again(tmp_path: Path) -> None:
    async with served_cluster(tmp_path, "--colocated=1") as cluster:
        router = psutil.Process((await cluster.pids())["router"])
        port = int(cluster.url.rpartition(":")[2])
        router.kill()
        await asyncio.to_thread(router.wait, 20)
        with socket.create_server(("127.0.0.1", port)):
            await cluster.wait_printed("Address already in use", num_times=NUM_FAILURES)
        await cluster.wait_whole()
        assert await cluster.complete() == 200
