"""GGUF models of the hub, by quantization or file."""

from pathlib import Path
from typing import NoReturn

import click
import pytest

from baton.cli.options import hub_gguf
from baton.cli.options.hub_gguf import HubGguf

NAMES = {
    "README.md",
    "mmproj-F16.gguf",
    "small-Q4_K_M.gguf",
    "small-UD-Q4_K_XL.gguf",
    "small.Q8_0.gguf",
    "BF16/small-BF16-00001-of-00002.gguf",
    "BF16/small-BF16-00002-of-00002.gguf",
}
BF16 = ["BF16/small-BF16-00001-of-00002.gguf", "BF16/small-BF16-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b:Q4_K_M", HubGguf("a/b", "Q4_K_M")),
        ("a/b.c-GGUF:x.gguf", HubGguf("a/b.c-GGUF", "x.gguf")),
        ("a/b/x.gguf", HubGguf("a/b", "x.gguf")),
        ("a/b/c/x.gguf", HubGguf("a/b", "c/x.gguf")),
        ("a/b", None),
        ("a/x.gguf", None),
        ("/a/b/x.gguf", None),
        ("./b/c/x.gguf", None),
        ("a/b:c/d", None),
        ("a:b", None),
    ],
)
def test_a_text_names_a_repository_and_what_of_it(text: str, expected: HubGguf | None) -> None:
    assert HubGguf.read(text) == expected


@pytest.mark.parametrize(
    ("wanted", "files"),
    [
        ("Q4_K_M", ["small-Q4_K_M.gguf"]),
        ("q8_0", ["small.Q8_0.gguf"]),
        ("Q4_K_XL", ["small-UD-Q4_K_XL.gguf"]),
        ("UD-Q4_K_XL", ["small-UD-Q4_K_XL.gguf"]),
        ("BF16", BF16),
        (BF16[1], BF16),
        ("BF16/small-BF16.gguf", BF16),
        ("small-Q4_K_M.gguf", ["small-Q4_K_M.gguf"]),
    ],
)
def test_the_files_of_one_model_are_chosen(wanted: str, files: list[str]) -> None:
    assert HubGguf("a/b", wanted).choose(NAMES) == files


def test_the_cache_is_enough_if_the_hub_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object) -> NoReturn:
        raise click.ClickException("a/b could not be downloaded from the hub")

    monkeypatch.setattr(hub_gguf, "hub_names", unreachable)
    monkeypatch.setattr(hub_gguf, "cached_snapshot", lambda *_: tmp_path)
    (tmp_path / "BF16").mkdir()
    for name in BF16:
        (tmp_path / name).touch()
    assert HubGguf("a/b", "BF16").download(None) == (tmp_path / BF16[0], tmp_path.name)
    with pytest.raises(click.ClickException, match="no GGUF model for Q8_0; name one of BF16/small-BF16, as"):
        HubGguf("a/b", "Q8_0").download(None)
    with pytest.raises(click.ClickException, match="could not be downloaded"):
        HubGguf("a/b", "BF16").download(None, tmp_path)


@pytest.mark.parametrize(
    ("wanted", "names", "message"),
    [
        ("Q5_K_M", NAMES, "a/b has no GGUF model for Q5_K_M; name one of BF16/small-BF16, .*, as a/b/NAME.gguf"),
        ("4_K_M", NAMES, "no GGUF model for 4_K_M"),
        ("Q8_0", {"x-Q8_0.gguf", "y-Q8_0.gguf"}, "several GGUF models for Q8_0; name one of x-Q8_0, y-Q8_0, as"),
        ("Q8_0", {"model.safetensors"}, "a/b has no GGUF files; leave out 'Q8_0'"),
    ],
)
def test_anything_else_is_refused_with_what_there_is(wanted: str, names: set[str], message: str) -> None:
    with pytest.raises(click.ClickException, match=message):
        HubGguf("a/b", wanted).choose(names)
