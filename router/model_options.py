"""Options of one served model."""

from dataclasses import dataclass
from pathlib import Path

from baton.engine.checkpoint.gguf.tensors import model_name
from baton.router.parsing.formats import REASONING_FORMAT_NAMES, TOOL_FORMAT_NAMES
from baton.settings.values import JsonText, OptionError, parse_json, shown, split_outside_braces

NO_PARSER = "none"
TOOL_PARSERS = (*TOOL_FORMAT_NAMES, NO_PARSER)
REASONING_PARSERS = (*REASONING_FORMAT_NAMES, NO_PARSER)
PARSERS = {"tool_call_parser": TOOL_PARSERS, "reasoning_parser": REASONING_PARSERS}
MODEL_FORM = (
    "PATH, PATH=NAME or PATH=NAME;OPTION=VALUE;... with the options tool_call_parser, reasoning_parser, tokenizer "
    "(a directory) and hf_overrides (JSON)"
)
TOKENIZER, OVERRIDES = "tokenizer", "hf_overrides"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Directory and name of a model, and the formats of its outputs."""

    directory: str
    name: str  # for clients
    tool_call_parser: str | None = None  # None: found in the chat template
    reasoning_parser: str | None = None  # the same
    tokenizer: str | None = None  # its directory; None: the model's
    hf_overrides: JsonText | None = None  # of its config.json


def directory_name(directory: str) -> str:
    """Return the last part of a directory's path, without .gguf: the default of the model's name."""
    last = Path(directory.rstrip("/").rsplit("/", 1)[-1])
    return model_name(last) if last.suffix == ".gguf" else last.name


def read_model_options(text: str) -> ModelOptions:
    """Return the options in a text of `MODEL_FORM`. Raises OptionError."""
    model, *settings = split_outside_braces(text, ";")
    directory, is_named, name = (part.strip() for part in model.partition("="))
    if not directory.rstrip("/") or (is_named and not name):
        raise OptionError(f"{shown(text)} is not {MODEL_FORM}")
    given: dict[str, str] = {}
    for setting in settings:
        key, _, value = (part.strip() for part in setting.partition("="))
        key = key.replace("-", "_")
        if key not in (*PARSERS, TOKENIZER, OVERRIDES) or key in given or not value:
            raise OptionError(f"{shown(text)} is not {MODEL_FORM}")
        if key in PARSERS and value not in PARSERS[key]:
            raise OptionError(f"{shown(text)}: {key} must be one of {', '.join(PARSERS[key])}")
        given[key] = value
    return ModelOptions(
        directory,
        name or directory_name(directory),
        tool_call_parser=given.get("tool_call_parser"),
        reasoning_parser=given.get("reasoning_parser"),
        tokenizer=given.get(TOKENIZER),
        hf_overrides=_overrides(text, given[OVERRIDES]) if OVERRIDES in given else None,
    )


def _overrides(text: str, value: str) -> JsonText:
    try:
        return parse_json(value)
    except ValueError as error:
        raise OptionError(f"{shown(text)}: {OVERRIDES} must be a JSON object") from error
