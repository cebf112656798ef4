"""Help of every command: groups, examples, and lines that fit the terminal."""

from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from baton.__main__ import COMMANDS, main
from baton.cli.options.panels import PANELS

ALL = [(name,) for name in COMMANDS] + [("key", "new"), ("key", "check")]
WITH_EXAMPLES = ("serve", "worker", "router", "bench", "chat", "status", "doctor", "drain", "role", "fetch", "simulate")


def help_of(*words: str, columns: int) -> str:
    result = CliRunner().invoke(main, [*words, "--help"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("words", [(), *ALL])
@pytest.mark.parametrize("columns", [80, 100, 200])
def test_no_line_is_wider_than_the_terminal_or_100_columns(words: tuple[str, ...], columns: int) -> None:
    lines = [line.rstrip() for line in help_of(*words, columns=columns).splitlines()]
    assert [line for line in lines if len(line) > min(columns, 100)] == []
    assert "…" not in "".join(lines), "something was cut off"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_option_is_shown_and_explained(name: str) -> None:
    command = import_module(f"baton.cli.{name}").command
    text = "".join(help_of(name, columns=100).split())
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, parameter.name
            assert all(flag in text for flag in parameter.opts), parameter.name


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_use_existing_options(name: str) -> None:
    command = import_module(f"baton.cli.{name}").command
    lines = [line.strip() for line in help_of(name, columns=100).splitlines()]
    examples = [line for line in lines if line.startswith(f"$ baton {name}")]
    assert examples
    known = {flag for parameter in command.params for flag in parameter.opts}
    used = {word for example in examples for word in example.split() if word.startswith("-")}
    assert used <= known


@pytest.mark.parametrize("name", ["serve", "worker", "router"])
def test_every_option_is_in_a_group(name: str) -> None:
    params = import_module(f"baton.cli.{name}").command.params
    shown = {each.name for each in params if isinstance(each, click.Option) and not each.hidden}
    assert shown - {option for options in PANELS.values() for option in options} == set()


def test_options_of_serve_are_in_groups() -> None:
    titles = [line.rstrip() for line in help_of("serve", columns=100).splitlines() if line.rstrip().endswith(":")]
    expected = ["Model:", "Workers:", "Mixture of experts:", "KV cache:", "KV transfer:", "Batching:", "Server:"]
    assert [title for title in titles if title in expected] == expected
    rest = help_of("serve", columns=100).partition("\nOptions:")[2]
    assert "--help" in rest
    assert "--max-num-seqs" not in rest
