"""Adapters that a router's options name, in vLLM's two forms."""

from dataclasses import dataclass

import orjson

from baton.router.adapters.adapter import NAME_RULE, is_adapter_name, is_path
from baton.settings.values import OptionError, shown

FORM = 'NAME=PATH or {"name": "NAME", "path": "PATH", "base_model_name": "MODEL"}'
KEYS = frozenset({"name", "path", "base_model_name"})


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter that is loaded when the router starts."""

    name: str
    path: str
    base_model_name: str | None = None  # of the served models; None: the first one


def read_module(text: str) -> LoraModule:
    """Return the module in a text of `FORM`. Raises OptionError."""
    module = _from_json(text) if text.lstrip().startswith("{") else _from_pair(text)
    if not is_adapter_name(module.name):
        raise OptionError(f"{shown(module.name)} cannot be the name of an adapter; it must have {NAME_RULE}")
    if not is_path(module.path):
        raise OptionError(f"{shown(module.path)} cannot be the path of the adapter {module.name}")
    return module


def _from_pair(text: str) -> LoraModule:
    name, _, path = (part.strip() for part in text.partition("="))
    if not name or not path:
        raise OptionError(f"{shown(text)} is not {FORM}")
    return LoraModule(name, path)


def _from_json(text: str) -> LoraModule:
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OptionError(f"{shown(text)} is not {FORM}: {error}") from error
    values = {key: value for key, value in values.items() if (key, value) != ("base_model_name", None)}
    texts = {key: value for key, value in values.items() if isinstance(value, str) and value}
    if not {"name", "path"} <= texts.keys() or values.keys() - KEYS or texts.keys() != values.keys():
        raise OptionError(f"{shown(text)} is not {FORM}")
    return LoraModule(texts["name"], texts["path"], texts.get("base_model_name"))
