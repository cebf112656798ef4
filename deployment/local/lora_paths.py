"""Paths of LoRA adapters on this machine, as its router and workers get them."""

import json
from collections.abc import Mapping
from pathlib import Path

from baton.router.adapters.module import read_module
from baton.settings.values import OptionError, Value

CONFIG = "adapter_config.json"


def with_lora_paths(router: Mapping[str, Value]) -> dict[str, Value]:
    """Return a router's options with absolute paths. Raises OptionError for an adapter that does not exist."""
    found = dict(router)
    directory, modules = router.get("lora_dir"), router.get("lora_modules")
    if isinstance(directory, str):
        path = Path(directory).expanduser().absolute()
        if not path.is_dir():
            raise OptionError(f"lora_dir: {path} is not a directory")
        found["lora_dir"] = str(path)
    if isinstance(modules, tuple):
        found["lora_modules"] = tuple(map(_absolute, modules))
    return found


def _absolute(text: str) -> str:
    try:
        module = read_module(text)
    except OptionError as error:
        raise OptionError(f"lora_modules: {error}") from error
    path = Path(module.path).expanduser().absolute()
    if not (path / CONFIG).is_file():
        raise OptionError(f"lora_modules: the adapter {module.name} has no {CONFIG} in {path}")
    given = {"name": module.name, "path": str(path), "base_model_name": module.base_model_name}
    return json.dumps({key: value for key, value in given.items() if value is not None})
