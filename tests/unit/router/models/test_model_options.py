"""The options of several models."""

from pathlib import Path

import pytest

from baton.router.config import RouterConfig
from baton.router.model_options import ModelOptions, read_model_options
from baton.settings.config_file import load
from baton.settings.flags import flags_of
from baton.settings.values import JsonText, OptionError, parsed_json


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("/models/b", ModelOptions("/models/b", "b")),
        ("/models/b/", ModelOptions("/models/b/", "b")),
        ("/models/b = org/b", ModelOptions("/models/b", "org/b")),
        ("/b;tool-call-parser=hermes", ModelOptions("/b", "b", "hermes")),
        ("/b;tokenizer=/t", ModelOptions("/b", "b", tokenizer="/t")),
        (
            '/b=c;hf_overrides={"a": [1, 2], "b": {"c": "x=y;}"}};tokenizer=/t',
            ModelOptions("/b", "c", None, None, "/t", JsonText('{"a": [1, 2], "b": {"c": "x=y;}"}}')),
        ),
        (
            r'/b;hf_overrides={"a": "\"}", "b": "\\"};tokenizer=/t',
            ModelOptions("/b", "b", None, None, "/t", JsonText(r'{"a": "\"}", "b": "\\"}')),
        ),
        ("/{b;tokenizer=/t", ModelOptions("/{b", "{b", tokenizer="/t")),
        ("/b=c;reasoning_parser=none;tool_call_parser=none", ModelOptions("/b", "c", "none", "none")),
    ],
)
def test_a_model_has_a_directory_and_maybe_a_name_and_parsers(text: str, options: ModelOptions) -> None:
    assert read_model_options(text) == options


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("=b", "'=b' is not PATH, PATH=NAME or"),
        ("/b=", "is not PATH"),
        ("/b;dtype=float32", "is not PATH"),
        ("/b;tool_call_parser=hermes;tool_call_parser=none", "is not PATH"),
        ("/b;tool_call_parser=morse", "tool_call_parser must be one of .*, none"),
        ("/b;tokenizer=", "is not PATH"),
        ('/b;hf_overrides={"a": 1', "hf_overrides must be a JSON object"),
        ("/b;hf_overrides=[1]", "hf_overrides must be a JSON object"),
        ("/other/a", "two models have the name a; give one of them another, as PATH=NAME"),
        ("/b,/c=b", "two models have the name b"),
    ],
)
def test_wrong_models_are_wrong_options(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"^also_serve: .*{reason}"):
        RouterConfig(model="/models/a", also_serve=tuple(text.split(",")))


def test_models_in_a_file_and_as_flags(tmp_path: Path) -> None:
    file = tmp_path / "router.yaml"
    file.write_text(
        "model: /models/a\nalso_serve:\n  - /models/b=second;tool_call_parser=hermes\n  - >-\n"
        '    /models/c;tokenizer=/t;hf_overrides={"a": 1, "b": {"c": ";,", "d": 2}}\n'
    )
    config = load(RouterConfig, file, {})
    assert [model.name for model in config.models] == ["a", "second", "c"]
    assert config.models[1].tool_call_parser == "hermes"
    assert config.models[2].tokenizer == "/t"
    assert parsed_json(config.models[2].hf_overrides) == {"a": 1, "b": {"c": ";,", "d": 2}}
    flags = dict(flag[2:].split("=", 1) for flag in flags_of(config))
    named = {name.replace("-", "_"): value for name, value in flags.items()}
    assert load(RouterConfig, None, named) == config  # as each of several processes gets them
