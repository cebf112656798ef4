"""Configs from a YAML file and command-line flags; flags win."""

import difflib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

import yaml

from baton.settings.options import Option, options_of, sections_of
from baton.settings.values import OptionError, Value, shown, shown_name

Config = TypeVar("Config")

BAD_SCALAR = (ValueError, LookupError, TypeError, AttributeError)  # a 13th month, 5,000 digits, !!bool x, !!timestamp x
MAX_KEYS = 1000  # of one mapping; YAML merges could double the size at every level


class UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that rejects duplicate keys, of which YAML libraries silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        """Return the mapping. Raises YAMLError for duplicate keys."""
        if not isinstance(node, yaml.MappingNode):
            raise _wrong(f"expected a mapping, found {node.id}", node)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise _wrong(f"{shown_name(key.value)} is given twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Resolve merge keys (<<). Raises YAMLError above MAX_KEYS."""
        super().flatten_mapping(node)
        if len(node.value) > MAX_KEYS:
            raise _wrong(f"over {MAX_KEYS} keys in a mapping", node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Return a value. Raises YAMLError for a scalar that does not match its type, where PyYAML raises others."""
        try:
            return super().construct_object(node, deep)
        except BAD_SCALAR as error:
            raise _wrong(f"{shown(node.value)} cannot be read: {error}", node) from error


def _wrong(what: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)


def read_config_file(path: Path) -> dict[str, object]:
    """Return the top-level mapping, with dashes in keys read as underscores. Raises OptionError if there is none."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), UniqueKeyLoader)
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OptionError(f"{path} is not YAML: {error}") from error
    except RecursionError as error:
        raise OptionError(f"{path} is nested too deeply") from error
    except (ValueError, OverflowError) as error:  # an invalid character escape
        raise OptionError(f"{path} is not YAML: {error}") from error
    return as_section(content, str(path))


def as_section(content: object, where: str) -> dict[str, object]:
    """Return a section's values by option name; None is an empty section. Raises OptionError if it is not a mapping."""
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise OptionError(f"{where}: must be a mapping of options to values, but is {shown(content)}")
    section: dict[str, object] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name in section:
            raise OptionError(f"{where}: {shown_name(name)} is given twice, with a dash and with an underscore")
        section[name] = value
    return section


def check_section(
    options: Mapping[str, Option],
    values: Mapping[str, object],
    where: str = "",
    elsewhere: Mapping[str, str] | None = None,
) -> dict[str, Value]:
    """Return the values converted to their fields' types.

    where: prefix of keys in errors, such as "engine."; elsewhere: section of each option that belongs to another one.
    An option's aliases are keys as well. Raises OptionError naming the first key that is unknown (with near matches),
    repeated or has a wrong value.
    """
    by_key = {key: option for option in options.values() for key in option.keys}
    checked: dict[str, Value] = {}
    for key, value in values.items():
        option = by_key.get(key)
        if option is None:
            raise OptionError(f"{where}{shown_name(key)}: unknown option{_hint(key, list(by_key), elsewhere or {})}")
        if option.name in checked:
            raise OptionError(f"{where}{key}: given twice, under the names {' and '.join(sorted(option.keys))}")
        try:
            checked[option.name] = option.convert(value)
        except OptionError as error:
            raise OptionError(f"{where}{key}: {error}") from error
    return checked


def _hint(name: str, known: list[str], elsewhere: Mapping[str, str]) -> str:
    if name in elsewhere:
        return f" here; it belongs under {elsewhere[name]}"
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; known are {', '.join(sorted(known))}"


def build(config: type[Config], *layers: Mapping[str, object]) -> Config:
    """Return a config from checked values; later layers override earlier ones. Raises OptionError for missing ones."""
    values: dict[str, object] = {}
    for layer in layers:
        values.update(layer)
    missing = [option.flag for option in options_of(config).values() if option.required and option.name not in values]
    if missing:
        raise OptionError(f"missing: {', '.join(missing)}")
    return config(**values)


def load(
    config: type[Config],
    file: Path | None,
    flags: Mapping[str, object],
    defaults: Mapping[str, Value] | None = None,
) -> Config:
    """Return a config from a file (sections are nested dataclasses) and flags (flat; None: not given).

    `defaults` override those of the config's fields. Raises OptionError naming the offending key.
    """
    content = read_config_file(file) if file is not None else {}
    sections = sections_of(config)
    nested: dict[str, object] = {}
    elsewhere = {name: section for section, kind in sections.items() for name in options_of(kind)}
    for section, kind in sections.items():
        options = options_of(kind)
        from_file = check_section(options, as_section(content.pop(section, {}), section), f"{section}.")
        nested[section] = build(kind, from_file, pick(options, flags))
    options = options_of(config)
    from_file = check_section(options, content, elsewhere=elsewhere)
    return build(config, defaults or {}, from_file, pick(options, flags), nested)


def pick(options: Mapping[str, Option], flags: Mapping[str, object]) -> dict[str, Value]:
    """Return the given flags that belong to these options, by option name; flags may have former names.

    Raises OptionError naming a flag that is given twice or has a wrong value.
    """
    by_key = {key: option for option in options.values() for key in (option.name, *option.help.former)}
    chosen: dict[str, Value] = {}
    for key, value in flags.items():
        option = by_key.get(key)
        if option is None or value is None:
            continue
        if option.name in chosen:
            raise OptionError(f"{option.flag}: given twice, also under a former name")
        try:
            chosen[option.name] = option.convert(value)
        except OptionError as error:
            raise OptionError(f"--{key.replace('_', '-')}: {error}") from error
    return chosen
