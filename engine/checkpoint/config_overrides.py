"""Changes of a config.json by the option `hf_overrides`, with the meaning that they have in vLLM."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from math import ceil

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.config import ModelConfig
from baton.engine.errors import InvalidCheckpoint

OPTION = "hf_overrides"
ROTARY = ("rope_scaling", "rope_parameters")  # names of the same options in transformers 4 and 5
KEPT = ("rope_theta", "partial_rotary_factor")  # rotary options that are not part of a scaling
TEXT = "text_config"


def of_language_model(overrides: Mapping[str, object]) -> Mapping[str, object]:
    """Return the overrides with those of `text_config` moved up, where the language model's are read."""
    text = overrides.get(TEXT)
    if not isinstance(text, dict):
        return overrides
    return {key: value for key, value in overrides.items() if key != TEXT} | text


def overridden(config: JsonObject, overrides: Mapping[str, object]) -> JsonObject:
    """Return a language model's config with other values of some keys; objects are replaced as a whole.

    The rotary embedding is an exception: its base frequency, its share of a head and the embeddings of other layers
    stay unless they are changed too.
    """
    changes = dict(overrides)
    former = next((config.raw(key) for key in ROTARY if key in config), None)
    for key, other in (ROTARY, ROTARY[::-1]):
        if key in overrides:
            changes[key] = _rotary(former, overrides[key])
            changes.setdefault(other, None)
    return JsonObject(dict.fromkeys(config.nulls) | config.values | changes, f"{config.source} with {OPTION}")


def _rotary(former: object, given: object) -> object:
    given = {} if given is None else given
    if not isinstance(former, dict) or not isinstance(given, dict):
        return given
    kept = {key: value for key, value in former.items() if key in KEPT or isinstance(value, dict)}
    return kept | {key: _rotary(former.get(key), value) for key, value in given.items()}


def check_effect(config: JsonObject, overrides: Mapping[str, object], architecture: str) -> None:
    """Raise InvalidCheckpoint for the first override that was not read, and so has no effect."""
    path = next(config.unread(overrides), None)
    if path is None:
        return
    parent, _, key = path.rpartition(".")
    near = get_close_matches(key, (config.inner(parent) if parent in config.reads else config).reads, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidCheckpoint(f"{OPTION}: {path} has no effect on {architecture}{hint}")


def how_to_extend(model: ModelConfig, max_model_len: int) -> str:
    """Return the end of an error about a context that is too long.

    It is empty for a rotary embedding that is scaled already, or is not the same in all layers.
    """
    if model.rope.kind != "default" or model.local_rope is not None:
        return ""
    longest = model.max_model_len
    factor = float(ceil(max_model_len / longest))
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": longest}
    return f"; YaRN extends it, less exactly: --hf-overrides '{json.dumps({ROTARY[0]: scaling})}'"
