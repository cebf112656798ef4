"""`baton serve --ray`: answers, and leaves nothing behind."""

from pathlib import Path

from tests.integration.ray_cluster import command_line
from tests.integration.ray_serve_command import ray_serve_command


async def test_it_answers_and_leaves_no_process(tmp_path: Path) -> None:
    async with ray_serve_command(tmp_path) as command:
        await command.answers()
        assert any("raylet" in " ".join(command_line(each)) for each in command.started)
        await command.interrupt()
