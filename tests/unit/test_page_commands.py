"""Commands of the pages: each `baton ...` in a block names a command and options that exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from baton.__main__ import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^ *```(?:sh|bash|console)?\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?baton\s+([a-z].*)$", re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words behind `baton` of each command, without a pipe or a comment behind it."""
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        whole = re.sub(r"\\\n\s*", "", block)
        for text in COMMAND.findall(whole):
            lexer = shlex.shlex(text, posix=True, punctuation_chars="|;&>")
            lexer.whitespace_split = True
            words = list(lexer)
            ends = [place for place, word in enumerate(words) if word[0] in "|;&>"]
            yield words[: ends[0]] if ends else words


def faults(words: list[str]) -> list[str]:
    """Return what `baton` would not know of a command."""
    command: click.Command = main
    context, rest = click.Context(main, info_name="baton"), words
    while isinstance(command, click.Group):
        try:
            name, found, rest = command.resolve_command(context, rest)
        except click.UsageError as error:
            return [error.message]
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    known = {name for option in command.get_params(context) for name in (*option.opts, *option.secondary_opts)}
    flags = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
    return [f"no option {flag}" for flag in flags if flag not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_exist(page: Path) -> None:
    wrong = [f"baton {shlex.join(words)}: {fault}" for words in commands(page) for fault in faults(words)]
    assert wrong == []


def test_a_wrong_option_is_found() -> None:
    assert faults(["serve", "--model", "x", "--no-such=1"]) == ["no option --no-such"]
    assert faults(["key", "new", "--name=x"]) == []
    assert len(faults(["keys"])) == 1
