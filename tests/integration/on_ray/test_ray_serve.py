"""`baton serve --ray` serves, and leaves no process behind."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.integration.on_ray.ray_cluster import RayCluster, command_line
from tests.integration.on_ray.ray_serve_command import ray_serve_command

PRINT_GPUS = """
import sys
from baton.cli.serve_ray import auto_gpus
gpus = auto_gpus(sys.argv[1])
print(gpus.auto_device, gpus.count, gpus.reason)
"""


async def test_it_serves_and_leaves_no_process(tmp_path: Path) -> None:
    async with ray_serve_command(tmp_path) as command:
        await command.answers()
        assert any("raylet" in " ".join(command_line(each)) for each in command.started)
        await command.interrupt()


@pytest.mark.slow
async def test_auto_uses_the_gpus_of_the_ray_that_it_joins() -> None:
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as name:
        env = {"CUDA_VISIBLE_DEVICES": "0,1"}  # Ray refuses a node with more GPUs than this variable lists
        ray = RayCluster(Path(name), env=env, flags=("--num-gpus=2",))
        try:
            await ray.head.start()
            command = (sys.executable, "-c", PRINT_GPUS, ray.address)
            process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=ray.env)
            printed, _ = await process.communicate()
        finally:
            await ray.end()
    assert printed.decode().strip() == "cuda 2 the nodes of this Ray cluster have 2 GPUs"
