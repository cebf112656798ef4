"""Command-line options generated from the fields of frozen config dataclasses."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

from baton.settings.values import (
    Bounds,
    OptionError,
    Value,
    parse_bool,
    parse_float,
    parse_int,
    parse_size,
    parse_text,
    parse_texts,
    shown,
)

Command = TypeVar("Command", bound=Callable[..., object])

MAX_METAVAR = 24  # columns; longer lists of choices are part of the help text


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """Properties of an option beyond its field's type: help text, bounds, visibility."""

    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    hidden: bool = False
    secret: bool = False  # its value is never shown
    aliases: tuple[str, ...] = ()  # additional flags, mostly vLLM's names ("--tensor-parallel-size")
    synonyms: Mapping[str, str] = field(default_factory=dict)  # choice -> the choice that replaces it


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a config dataclass, settable by a flag or a file."""

    name: str
    kind: type  # str, int, float, bool or tuple (of str)
    optional: bool
    required: bool
    default: object
    info: OptionInfo
    bounds: Bounds

    @property
    def flag(self) -> str:
        """Command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def keys(self) -> set[str]:
        """Keys in a file: the field's name and the long aliases."""
        return {self.name, *(alias[2:].replace("-", "_") for alias in self.info.aliases if alias.startswith("--"))}

    @property
    def allowed(self) -> str:
        """Description of the allowed values, for errors."""
        is_size = self.name.endswith("_bytes")
        kinds = {
            int: "a whole number",
            float: "a number",
            bool: "true or false",
            str: "a text",
            tuple: "a list of texts",
        }
        kind = "a number of bytes (such as 512M or 4GiB)" if is_size else kinds[self.kind]
        limits = str(self.bounds)
        return limits if self.bounds.choices else f"{kind} {limits}".strip()

    def convert(self, value: object) -> Value:
        """Return the value converted to the field's type. Raises OptionError with the allowed values."""
        if value is None and self.optional:
            return None
        try:
            converted = self._parse(value)
        except (ValueError, OverflowError):
            converted = None
        if converted is None or not self.bounds.allow(converted):
            given = "the value" if self.info.secret else shown(value)
            raise OptionError(f"{given} is not allowed; it must be {self.allowed}")
        return self.info.synonyms.get(converted, converted) if isinstance(converted, str) else converted

    def _parse(self, value: object) -> Value:
        if self.kind is int:
            return parse_size(value) if self.name.endswith("_bytes") else parse_int(value)
        parsers: dict[type, Callable[[object], Value]] = {
            float: parse_float,
            bool: parse_bool,
            str: parse_text,
            tuple: parse_texts,
        }
        return parsers[self.kind](value)


def _converter(option: Option) -> Callable[[str], Value]:
    """Return a click converter that uses the option's conversion."""

    def convert(text: str) -> Value:
        try:
            return option.convert(text)
        except OptionError as error:
            raise click.BadParameter(str(error)) from error

    return convert


def options_of(config: type, infos: Mapping[str, OptionInfo]) -> dict[str, Option]:
    """Return the options of a config dataclass by field name, without nested dataclasses, which are sections."""
    hints = get_type_hints(config)
    return {
        entry.name: _option(entry, hints[entry.name], infos.get(entry.name, OptionInfo("")))
        for entry in fields(config)
        if not is_dataclass(hints[entry.name])
    }


def sections_of(config: type) -> dict[str, type]:
    """Return the nested dataclasses of a config dataclass by field name."""
    hints = get_type_hints(config)
    return {entry.name: hints[entry.name] for entry in fields(config) if is_dataclass(hints[entry.name])}


def _option(entry: Field[object], hint: object, info: OptionInfo) -> Option:
    members = [hint]
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member is not NoneType]
    optional = len(members) < len(get_args(hint)) if members != [hint] else False
    kind, choices = members[0], info.choices
    if get_origin(kind) is Literal:
        choices = choices or get_args(kind)
        kind = str
    kind = get_origin(kind) or kind
    if len(members) != 1 or kind not in (str, int, float, bool, tuple):
        raise TypeError(f"field {entry.name}: {hint} cannot be an option")
    assert isinstance(kind, type)
    default = entry.default_factory() if entry.default_factory is not MISSING else entry.default
    bounds = Bounds(choices, info.minimum, info.maximum)
    return Option(entry.name, kind, optional, default is MISSING, default, info, bounds)


def click_options(
    options: Mapping[str, Option], leave_out: frozenset[str] = frozenset()
) -> Callable[[Command], Command]:
    """Return a decorator that adds a flag for each option to a click command; flags that are not given are None."""

    def decorate(command: Command) -> Command:
        for option in reversed(list(options.values())):
            if option.name not in leave_out:
                command = _click_option(option)(command)
        return command

    return decorate


def _click_option(option: Option) -> Callable[[Command], Command]:
    default = option.default
    shown = default is not None and default is not MISSING and default not in ("", ())
    text = option.info.help + _choices_text(option) + (f" [default: {_default_text(option)}]" if shown else "")
    hidden = option.info.hidden
    if option.kind is bool:
        flags = f"{option.flag}/--no-{option.flag[2:]}"
        return click.option(flags, option.name, default=None, help=text, hidden=hidden)
    return click.option(
        option.flag,
        *option.info.aliases,
        option.name,
        type=_converter(option),
        default=None,
        help=text,
        hidden=hidden,
        metavar=_metavar(option),
    )


def _choices_text(option: Option) -> str:
    """Return the list of choices for the help text if it is too long for the metavar."""
    return f" One of: {', '.join(option.bounds.choices)}." if _metavar(option) == "NAME" else ""


def _metavar(option: Option) -> str:
    if option.bounds.choices:
        choices = "|".join(option.bounds.choices)
        return f"[{choices}]" if len(choices) <= MAX_METAVAR else "NAME"
    if option.name.endswith("_bytes"):
        return "SIZE"
    return {int: "INTEGER", float: "NUMBER", tuple: "TEXT,..."}.get(option.kind, "TEXT")


def _default_text(option: Option) -> str:
    if option.kind is bool:
        return "on" if option.default else "off"
    if option.name.endswith("_bytes") and isinstance(option.default, int) and option.default % (1 << 20) == 0:
        return f"{option.default >> 20}MiB"
    return str(option.default)


def flags_of(config: object) -> list[str]:
    """Return the flags that reproduce a config: every value that differs from its field's default."""
    return list(_flags_of(config))


def _flags_of(config: object) -> Iterator[str]:
    assert is_dataclass(config)
    assert not isinstance(config, type)
    for name in sections_of(type(config)):
        yield from _flags_of(getattr(config, name))
    for option in options_of(type(config), {}).values():
        value = getattr(config, option.name)
        if value == option.default or value is None:
            continue
        if isinstance(value, bool):
            yield option.flag if value else f"--no-{option.flag[2:]}"
        else:
            yield f"{option.flag}={','.join(value) if isinstance(value, tuple) else value}"


TLS_OPTIONS = {
    "tls_cert": OptionInfo("PEM file with this process's certificate, for mutual TLS between Baton's processes."),
    "tls_key": OptionInfo("PEM file with the certificate's key."),
    "tls_ca": OptionInfo("PEM file with the authority that signed the certificate of every process."),
    "tls_server_name": OptionInfo("A name that is in every process's certificate. Default: the host of its address."),
}
