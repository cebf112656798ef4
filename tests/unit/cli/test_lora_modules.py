"""--lora-modules on command lines."""

import pytest
import rich_click as click
from click.testing import CliRunner

from baton.cli.options.lora_modules import ModulesCommand, joined_modules

JSON = '{"name": "b", "path": "/b"}'


@pytest.mark.parametrize(
    ("args", "joined"),
    [
        (["x", "--lora-modules", "a=/a", JSON, "--port", "1"], [f"--lora-modules=a=/a,{JSON}", "x", "--port", "1"]),
        (["--lora-modules=a=/a", "b=/b", "model"], ["--lora-modules=a=/a,b=/b", "model"]),
        (["--lora-modules", "a=/a", "--port=1", "--lora-modules", "b=/b"], ["--lora-modules=a=/a,b=/b", "--port=1"]),
        (["--lora-modules", "a=/a,b=/b"], ["--lora-modules=a=/a,b=/b"]),
        (["--port", "1", "model"], ["--port", "1", "model"]),
        (["--lora-modules", "a=/a", "--", "b=/b"], ["--lora-modules=a=/a", "--", "b=/b"]),
    ],
)  # fmt: skip
def test_all_adapters_become_one_flag(args: list[str], joined: list[str]) -> None:
    assert joined_modules(args) == joined


def test_a_command_gets_all_adapters_and_its_argument() -> None:
    @click.command(cls=ModulesCommand)
    @click.argument("model")
    @click.option("--lora-modules")
    def command(model: str, lora_modules: str) -> None:
        click.echo(f"{model} {lora_modules}")

    result = CliRunner().invoke(command, ["--lora-modules", "a=/a", "b=/b", "model"])
    assert result.output == "model a=/a,b=/b\n"
