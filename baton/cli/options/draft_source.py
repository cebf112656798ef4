"""Source of a draft model or head: a directory, or a hub id, of which the workers get the downloaded directory."""

import json
from collections.abc import Mapping
from pathlib import Path

from baton.cli.options.hub import HUB_PATTERNS, download, is_hub_id
from baton.engine.speculation.config import OPTION, SpeculationConfig
from baton.settings.values import JsonText, Value, parse_json, parsed_json

Engines = Mapping[str, Mapping[str, Value]]  # options of engines by role


def with_draft_directories(engines: Engines) -> Engines:
    """Return the options of engines with absolute directories of their draft models, downloaded if they are hub ids.

    Raises ClickException if a download fails, OptionError for invalid options.
    """
    return {role: _with_directory(options) for role, options in engines.items()}


def _with_directory(options: Mapping[str, Value]) -> Mapping[str, Value]:
    text = options.get(OPTION)
    speculation = SpeculationConfig.parse(text) if isinstance(text, JsonText) else None
    if not isinstance(text, JsonText) or speculation is None or speculation.model is None:
        return options
    path = Path(speculation.model).expanduser()
    is_remote = is_hub_id(speculation.model) and not path.exists()
    directory = download(speculation.model, HUB_PATTERNS) if is_remote else path.absolute()
    return {**options, OPTION: parse_json(json.dumps({**parsed_json(text), "model": str(directory)}))}
