"""Command-line flags of options, and the flags that reproduce a config."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, is_dataclass
from typing import TypeVar

import click
from click.shell_completion import CompletionItem

from baton.settings.options import Option, options_of, sections_of
from baton.settings.values import JsonText, OptionError, Value

Command = TypeVar("Command", bound=Callable[..., object])

MAX_METAVAR = 24  # columns; longer lists of choices are part of the help text
# Options whose values a shell completes as paths, by their names.
DIRECTORIES = re.compile(r".*_dir|model|tokenizer|kv_disk")
FILES = re.compile(r".*file|tls_(cert|key|ca)|.*_ca_certs|pin_prefix")


def click_options(options: Mapping[str, Option]) -> Callable[[Command], Command]:
    """Return a decorator that adds a flag for each option to a click command; flags that are not given are None.

    A former name is a hidden flag with its own entry among the command's flags, which `pick` reads.
    """

    def decorate(command: Command) -> Command:
        for option in reversed(list(options.values())):
            for name in option.help.former:
                command = _click_option(option, name, hidden=True)(command)
            command = _click_option(option, option.name, option.help.hidden, option.help.aliases)(command)
        return command

    return decorate


def _click_option(
    option: Option, name: str, hidden: bool, aliases: tuple[str, ...] = ()
) -> Callable[[Command], Command]:
    flag = name.replace("_", "-")
    text = (
        option.help.text + _choices_text(option) + (f" [default: {shown}]" if (shown := default_text(option)) else "")
    )
    if option.kind is bool:
        return click.option(f"--{flag}/--no-{flag}", name, default=None, help=text, hidden=hidden)
    return click.option(
        f"--{flag}",
        *aliases,
        name,
        type=_converter(option),
        default=None,
        help=text,
        hidden=hidden,
        metavar=_metavar(option),
        shell_complete=_completer(option),
    )


def _completer(option: Option) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a click callback that completes the option's value: its choices, or a path."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if FILES.fullmatch(option.name):
            return [CompletionItem(incomplete, type="file")]
        if DIRECTORIES.fullmatch(option.name):
            return [CompletionItem(incomplete, type="dir")]
        return [CompletionItem(choice) for choice in option.help.choices if choice.startswith(incomplete)]

    return complete


def _converter(option: Option) -> Callable[[str], Value]:
    """Return a click converter that uses the option's conversion."""

    def convert(text: str) -> Value:
        try:
            return option.convert(text)
        except OptionError as error:
            raise click.BadParameter(str(error)) from error

    return convert


def _choices_text(option: Option) -> str:
    """Return the list of choices for the help text if it is too long for the metavar."""
    return f" One of: {', '.join(option.help.choices)}." if _metavar(option) == "NAME" else ""


def _metavar(option: Option) -> str:
    if option.help.choices:
        choices = "|".join(option.help.choices)
        return f"[{choices}]" if len(choices) <= MAX_METAVAR else "NAME"
    if option.is_size:
        return "SIZE"
    return {int: "INTEGER", float: "NUMBER", tuple: "TEXT,...", JsonText: "JSON"}.get(option.kind, "TEXT")


def default_text(option: Option) -> str:
    """Return the default for help texts and tables; empty if the help text explains it, or there is none."""
    default = option.default
    if default is None or default is MISSING or default in ("", ()):
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if option.is_size and isinstance(default, int) and default % (1 << 20) == 0:
        return f"{default >> 20}MiB"
    return f"{default:g}" if isinstance(default, float) else str(default)


def flags_of(config: object) -> list[str]:
    """Return the flags that reproduce a config: every value that differs from its field's default."""
    return list(_flags_of(config))


def _flags_of(config: object) -> Iterator[str]:
    assert is_dataclass(config)
    assert not isinstance(config, type)
    for name in sections_of(type(config)):
        yield from _flags_of(getattr(config, name))
    for option in options_of(type(config)).values():
        value = getattr(config, option.name)
        if value == option.default or value is None:
            continue
        if isinstance(value, bool):
            yield option.flag if value else f"--no-{option.flag[2:]}"
        else:
            yield f"{option.flag}={','.join(value) if isinstance(value, tuple) else value}"
