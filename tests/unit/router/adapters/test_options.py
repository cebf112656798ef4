"""Adapters in a router's options."""

import pytest

from baton.router.adapters.adapter import is_adapter_name
from baton.router.adapters.module import LoraModule, read_module
from baton.router.config import RouterConfig
from baton.settings.values import OptionError

MODEL = {"model": "/models/base", "workers": ("a:1",)}


@pytest.mark.parametrize("name", ["a", "team/sql-1.5", "..a", "...", ".a/b_c", "x" * 128])
def test_names(name: str) -> None:
    assert is_adapter_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/..", "../a", "/a", "a/", "a//b", "a b", "ä", "a\n", "x" * 129, "a/./b"]
)
def test_texts_that_are_no_names(name: str) -> None:
    assert not is_adapter_name(name)


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("sql=/adapters/sql", LoraModule("sql", "/adapters/sql")),
        (" team/sql = /a=b ", LoraModule("team/sql", "/a=b")),
        ('{"name": "sql", "path": "/sql"}', LoraModule("sql", "/sql")),
        ('{"name": "sql", "path": "/sql", "base_model_name": "base"}', LoraModule("sql", "/sql", "base")),
        ('{"name": "sql", "path": "/sql", "base_model_name": null}', LoraModule("sql", "/sql")),
    ],
)
def test_both_forms_of_a_module(text: str, module: LoraModule) -> None:
    assert read_module(text) == module


@pytest.mark.parametrize(
    "text",
    [
        "sql",
        "=/sql",
        "sql=",
        "{}",
        '{"name": 1, "path": "/a"}',
        '{"name": "a", "path": "/a", "rank": 1}',
        "{",
        "a b=/a",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        read_module(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_modules": ("a=/a",)}, "lora_modules: requires enable_lora"),
        ({"lora_dir": "/a"}, "lora_dir: requires enable_lora"),
        ({"enable_lora": True, "lora_dir": "a"}, "lora_dir: 'a' must be an absolute path"),
        ({"enable_lora": True, "lora_modules": ("a=/a", "a=/b")}, "a is the name of another adapter"),
        ({"enable_lora": True, "lora_modules": ("base=/b",)}, "base is the name of a served model"),
        (
            {"enable_lora": True, "lora_modules": ('{"name": "a", "path": "/a", "base_model_name": "other"}',)},
            "base_model_name other is not served, but base",
        ),
        (
            {"enable_lora": True, "lora_modules": tuple(f"a{i}=/a" for i in range(1001))},
            "1001 adapters, over the limit",
        ),
    ],
)
def test_adapters_that_cannot_be_served(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        RouterConfig(**MODEL, **options)  # type: ignore[arg-type]  # a test's own choice of options
