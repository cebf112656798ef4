"""Options of processes: the fields of frozen config dataclasses, each with its help text and bounds in its metadata."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from baton.settings.values import (
    JsonText,
    OptionError,
    Value,
    parse_bool,
    parse_float,
    parse_int,
    parse_json,
    parse_size,
    parse_text,
    parse_texts,
    shown,
)


@dataclass(frozen=True, slots=True)
class Help:
    """Help text of an option, and what else its field's type does not say."""

    text: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    hidden: bool = False
    secret: bool = False  # its value is never shown
    aliases: tuple[str, ...] = ()  # additional flags, mostly vLLM's names ("--tensor-parallel-size")
    former: tuple[str, ...] = ()  # names of earlier releases ("both"), accepted but not shown
    synonyms: Mapping[str, str] | None = None  # choice -> the choice that replaces it

    @property
    def limits(self) -> str:
        """Description of the choices or bounds; empty without any."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.minimum is not None and self.maximum is not None:
            return f"from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"at least {self.minimum:g}"
        return f"at most {self.maximum:g}" if self.maximum is not None else ""

    def allows(self, value: Value) -> bool:
        """Return whether a value of the right type is one of the choices or within the bounds."""
        if isinstance(value, str):
            return not self.choices or value in self.choices
        if isinstance(value, int | float):
            return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)
        return True


HELP = "help"  # key of a field's metadata
T = TypeVar("T")


def option(
    default: T,
    text: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    hidden: bool = False,
    secret: bool = False,
    aliases: tuple[str, ...] = (),
    former: tuple[str, ...] = (),
    synonyms: Mapping[str, str] | None = None,
) -> T:
    """Return a dataclass field that is an option with a default; the parameters are those of `Help`."""
    described = Help(text, choices, minimum, maximum, hidden, secret, aliases, former, synonyms)
    return field(default=default, repr=not secret, metadata={HELP: described})


def described(text: str) -> dict[str, Help]:
    """Return the metadata of a field that is a required option."""
    return {HELP: Help(text)}


# Help texts of options that several processes have.
LEASE_S = "Seconds after which the registry drops a process that does not renew its entry."
PROGRESS_FD = "File descriptor of a pipe for progress messages."
METRICS_NAMES = "Names of the series in /metrics: Baton's (prefix baton:), vLLM's (vllm:), or both."
TLS_CERT = "PEM file with this process's certificate, for mutual TLS between Baton's processes."
TLS_KEY = "PEM file with the certificate's key."
TLS_CA = "PEM file with the authority that signed the certificate of every process."
TLS_SERVER_NAME = "A name that is in every process's certificate. Default: the host of its address."

KINDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list of texts",
    JsonText: "a JSON object",
}
PARSERS: dict[type, Callable[[object], Value]] = {
    int: parse_int,
    float: parse_float,
    bool: parse_bool,
    str: parse_text,
    tuple: parse_texts,
    JsonText: parse_json,
}


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a config dataclass, settable by a flag or a file."""

    name: str
    kind: type  # one of KINDS; tuples are of str
    optional: bool
    required: bool
    default: object
    help: Help

    @property
    def flag(self) -> str:
        """Command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def keys(self) -> set[str]:
        """Keys in a file: the field's name, the long aliases and the former names."""
        aliases = {alias[2:].replace("-", "_") for alias in self.help.aliases if alias.startswith("--")}
        return {self.name, *aliases, *self.help.former}

    @property
    def is_size(self) -> bool:
        """Whether the value is a number of bytes, which may have a unit."""
        return self.kind is int and "_bytes" in self.name

    @property
    def allowed(self) -> str:
        """Description of the allowed values, for errors."""
        kind = "a number of bytes (such as 512M or 4GiB)" if self.is_size else KINDS[self.kind]
        return self.help.limits if self.help.choices else f"{kind} {self.help.limits}".strip()

    def convert(self, value: object) -> Value:
        """Return the value converted to the field's type. Raises OptionError with the allowed values."""
        if value is None and self.optional:
            return None
        try:
            converted = parse_size(value) if self.is_size else PARSERS[self.kind](value)
        except (ValueError, OverflowError):
            converted = None
        if converted is None or not self.help.allows(converted):
            given = "the value" if self.help.secret else shown(value)
            raise OptionError(f"{given} is not allowed; it must be {self.allowed}")
        if isinstance(converted, str) and self.help.synonyms is not None:
            return self.help.synonyms.get(converted, converted)
        return converted


def options_of(config: type) -> dict[str, Option]:
    """Return the options of a config dataclass by field name, without nested dataclasses, which are sections."""
    hints = get_type_hints(config)
    return {
        entry.name: _option(entry, hints[entry.name]) for entry in fields(config) if not is_dataclass(hints[entry.name])
    }


def sections_of(config: type) -> dict[str, type]:
    """Return the nested dataclasses of a config dataclass by field name."""
    hints = get_type_hints(config)
    return {entry.name: hints[entry.name] for entry in fields(config) if is_dataclass(hints[entry.name])}


def _option(entry: Field[object], hint: object) -> Option:
    about = entry.metadata.get(HELP)
    if not isinstance(about, Help):
        raise TypeError(f"field {entry.name}: has no help text; define it with option()")
    members = [hint]
    if get_origin(hint) in (Union, UnionType):
        members = [member for member in get_args(hint) if member is not NoneType]
    kind = members[0]
    if get_origin(kind) is Literal:
        about = replace(about, choices=about.choices or get_args(kind))
        kind = str
    kind = get_origin(kind) or kind
    if len(members) != 1 or not isinstance(kind, type) or kind not in KINDS:
        raise TypeError(f"field {entry.name}: {hint} cannot be an option")
    return Option(entry.name, kind, members != [hint], entry.default is MISSING, entry.default, about)
