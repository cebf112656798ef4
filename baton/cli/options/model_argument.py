"""MODEL as an argument, or as --model like in vLLM."""

import functools
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

Command = Callable[..., None]


def model_argument(command: Command) -> Command:
    """Add an argument MODEL to a click command that has --model, with the same meaning."""

    @functools.wraps(command)
    def wrapped(*, model_argument: str | None, model: str | None, **flags: Any) -> None:
        command(**flags, model=one_model(model_argument, model))

    argument = click.argument("model_argument", metavar="[MODEL]", required=False, shell_complete=_complete_directories)
    decorated: Command = argument(wrapped)
    return decorated


def _complete_directories(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def one_model(argument: str | None, option: str | None) -> str | None:
    """Return the model from the argument or the option. Raises UsageError if they differ."""
    if argument is not None and option not in (None, argument):
        raise click.UsageError(f"MODEL is {argument} and --model is {option}; name the model once")
    return option if argument is None else argument
