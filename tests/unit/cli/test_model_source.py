"""Where a model on the command line is found."""

import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from baton.cli.options import draft_source, model_source
from baton.cli.options.hub import HUB_PATTERNS, TOKENIZER_PATTERNS
from baton.cli.options.hub_gguf import HubGguf
from baton.cli.options.model_source import BUNDLED, Located, _locate, _locate_tokenizer, find_checkpoint
from baton.deployment.local.cluster_config import ClusterConfig, load_settings
from baton.deployment.local.cluster_plan import Checkpoint, plan_cluster
from baton.deployment.local.machine import Machine
from baton.engine.speculation.config import SpeculationConfig
from baton.settings.values import parse_json

COMMIT = "5" * 40
Downloads = list[tuple[str, list[str], str | None]]


def test_a_gguf_file_that_is_a_link_keeps_its_name(tmp_path: Path) -> None:
    """As in the hub's cache, where files are links to others without a suffix."""
    blob, link = tmp_path / "blobs" / "abc123", tmp_path / "snapshots" / "small-Q4_K_M.gguf"
    for path in (blob, link):
        path.parent.mkdir()
    blob.write_bytes(b"GGUF")
    link.symlink_to(blob)
    assert _locate(str(link)) == Located(link, "small-Q4_K_M")


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Downloads:
    """Calls of the hub, which has the bundled model under every id."""
    snapshot = shutil.copytree(BUNDLED, tmp_path / COMMIT)
    calls: Downloads = []

    def download(hub_id: str, patterns: list[str], directory: Path | None = None, revision: str | None = None) -> Path:
        calls.append((hub_id, patterns, revision))
        return snapshot

    for module in (model_source, draft_source):
        monkeypatch.setattr(module, "download", download)
    return calls


def found(**options: str) -> Checkpoint:
    return find_checkpoint(ClusterConfig(**options), {})  # type: ignore[arg-type]  # texts only


def test_the_revisions_of_model_and_tokenizer_are_downloaded(downloads: Downloads, tmp_path: Path) -> None:
    model = found(model="a/b")
    assert (model.name, model.commit, model.tokenizer) == ("a/b", COMMIT, None)
    found(model="a/b", revision="v1")
    both = found(model="a/b", revision="v1", tokenizer="c/d", tokenizer_revision="t2")
    assert both.tokenizer == tmp_path / COMMIT
    found(model="a/b", tokenizer="c/d")
    found(model="a/b", tokenizer_revision="t2")
    a_b = ("a/b", HUB_PATTERNS, None)
    v1 = ("a/b", HUB_PATTERNS, "v1")
    assert downloads == [
        *(a_b, v1, v1, ("c/d", TOKENIZER_PATTERNS, "t2")),
        *(a_b, ("c/d", TOKENIZER_PATTERNS, None)),
        *(a_b, ("a/b", TOKENIZER_PATTERNS, "t2")),
    ]


def test_a_draft_model_is_downloaded_or_found(
    downloads: Downloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"decode": {"speculative_config": parse_json('{"model": "a/small", "num_speculative_tokens": 3}')}}
    [engine] = draft_source.with_draft_directories(given).values()
    options = SpeculationConfig.parse(engine["speculative_config"])  # type: ignore[arg-type]  # of this type
    assert options == SpeculationConfig("draft_model", 3, model=str(tmp_path / COMMIT))
    assert downloads == [("a/small", HUB_PATTERNS, None)]
    find_checkpoint(ClusterConfig(), engine)
    local = {"both": {"speculative_config": parse_json('{"model": "small"}'), "block_size": 8}, "prefill": {}}
    found = draft_source.with_draft_directories(local)
    assert found["both"] == {"block_size": 8, "speculative_config": f'{{"model": "{tmp_path}/small"}}'}
    assert found["prefill"] == {}
    lookup = {"decode": {"speculative_config": parse_json('{"method": "ngram"}')}}
    assert draft_source.with_draft_directories(lookup) == lookup


def test_a_draft_model_that_does_not_fit_is_refused_before_anything_starts(tmp_path: Path) -> None:
    engine = {"speculative_config": parse_json(f'{{"model": "{tmp_path}/none"}}')}
    with pytest.raises(click.ClickException, match=r"cannot serve baton-bundled: .*/none is not a directory; name one"):
        find_checkpoint(ClusterConfig(), engine)


def test_a_model_without_a_tokenizer_is_served_with_another(tmp_path: Path) -> None:
    bare = shutil.copytree(BUNDLED, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer.json"))
    with pytest.raises(click.ClickException, match=rf"no tokenizer.json in {bare}; name .* with --tokenizer$"):
        found(model=str(bare))
    checkpoint = found(model=str(bare), tokenizer=str(BUNDLED))
    assert checkpoint.tokenizer == BUNDLED
    plan = plan_cluster(load_settings(None, {}), checkpoint, Machine(2, 1 << 34))
    for spec in plan.specs(tmp_path):
        assert f"--tokenizer={BUNDLED}" in spec.argv


def test_a_gguf_model_of_the_hub_is_its_first_file(
    downloads: Downloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, asked = tmp_path / "small-Q8_0-00001-of-00002.gguf", []

    def download_gguf(gguf: HubGguf, revision: str | None) -> tuple[Path, str]:
        asked.append((gguf, revision))
        return file, COMMIT

    monkeypatch.setattr(HubGguf, "download", download_gguf)
    assert _locate("a/b:Q8_0", "v1") == Located(file, "a/b:Q8_0", COMMIT)
    assert asked == [(HubGguf("a/b", "Q8_0"), "v1")]
    _locate_tokenizer(ClusterConfig(model="a/b:Q8_0", tokenizer_revision="t2"))
    assert downloads == [("a/b", TOKENIZER_PATTERNS, "t2")]


def test_a_local_gguf_file_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.gguf").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.ClickException, match=r"not for a/b/x\.gguf$"):
        _locate_tokenizer(ClusterConfig(model="a/b/x.gguf", tokenizer_revision="t"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda here: {"model": str(here), "revision": "v1"}, "^--revision is for models of the Hugging Face hub, not"),
        (lambda here: {"revision": "v1"}, "not for baton-bundled$"),
        (lambda here: {"model": str(here), "tokenizer_revision": "t"}, "^--tokenizer-revision is for tokenizers of"),
        (lambda here: {"tokenizer": str(here), "tokenizer_revision": "t"}, "^--tokenizer-revision is for"),
        (lambda here: {"tokenizer": "/nowhere"}, "^--tokenizer: /nowhere is neither a directory nor a hub id"),
    ],
)
def test_a_revision_of_a_directory_is_refused(options: Callable[[Path], dict[str, str]], message: str) -> None:
    with pytest.raises(click.ClickException, match=message):
        found(**options(BUNDLED))
