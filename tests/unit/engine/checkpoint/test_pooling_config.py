"""The pooling that a checkpoint names, and the checkpoints that are refused."""

import json
from pathlib import Path

import pytest

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.pooling_config import read_pooling_config
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.pooling.config import PoolingConfig
from tests.checkpoints import make_checkpoint
from tests.embedding_models import add_pooling, change_config

SIZE = 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint("qwen3", tmp_path / "model")


def write_modules(model: Path, *kinds: str, path: str = "1_Pooling") -> None:
    paths = {"Pooling": path, "Transformer": ""}
    entries = [{"path": paths.get(kind, "x"), "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (model / "modules.json").write_text(json.dumps(entries))


@pytest.mark.parametrize("kind", ["last", "mean", "cls"])
@pytest.mark.parametrize("normalizes", [False, True])
def test_modules_name_a_pooling(model: Path, kind: str, normalizes: bool) -> None:
    add_pooling(model, kind, normalizes=normalizes)
    expected = PoolingConfig(kind=kind, normalizes=normalizes, size=SIZE)  # type: ignore[arg-type]
    assert read_pooling_config(model, SIZE) == expected
    assert read_pooling_config(model, SIZE, "none") is None


def test_newer_poolings_have_one_mode(model: Path) -> None:
    add_pooling(model, "mean")
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    config = read_pooling_config(model, SIZE)
    assert config is not None
    assert config.kind == "last"


def test_the_option_replaces_the_checkpoints_pooling(model: Path) -> None:
    assert read_pooling_config(model, SIZE) is None
    assert read_pooling_config(model, SIZE, "mean") == PoolingConfig(kind="mean", normalizes=True, size=SIZE)
    add_pooling(model, "last", normalizes=False, is_matryoshka=True)
    expected = PoolingConfig(kind="cls", normalizes=False, size=SIZE, is_matryoshka=True)
    assert read_pooling_config(model, SIZE, "cls") == expected


def test_matryoshka_sizes(model: Path) -> None:
    add_pooling(model, "last", matryoshka_dimensions=[16, 64])
    config = read_pooling_config(model, SIZE)
    assert config is not None
    assert (config.is_matryoshka, config.matryoshka_sizes) == (True, (16, 64))
    change_config(model, matryoshka_dimensions=[128])
    with pytest.raises(InvalidCheckpoint, match=r"matryoshka_dimensions.*from 1 to 64"):
        read_pooling_config(model, SIZE)


@pytest.mark.parametrize(
    "kinds", [("Transformer",), ("Transformer", "Pooling", "Dense"), ("WordEmbeddings", "Pooling")]
)
def test_other_modules_are_refused_by_name(model: Path, kinds: tuple[str, ...]) -> None:
    add_pooling(model, "last")
    write_modules(model, *kinds)
    with pytest.raises(UnsupportedModel, match=f"{kinds[-1]}.*set pooling to last, mean, cls or none"):
        read_pooling_config(model, SIZE)
    assert read_pooling_config(model, SIZE, "last") is not None


@pytest.mark.parametrize(
    "pooling",
    [{"pooling_mode_max_tokens": True}, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, {}],
)
def test_other_poolings_are_refused_by_name(model: Path, pooling: dict[str, bool]) -> None:
    add_pooling(model, "last")
    (model / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(UnsupportedModel, match="is not supported, only the last token"):
        read_pooling_config(model, SIZE)


@pytest.mark.parametrize(
    ("path", "reason"), [("../1_Pooling", "outside"), ("/tmp", "outside"), ("2", "does not exist")]
)
def test_paths_stay_in_the_checkpoint(model: Path, path: str, reason: str) -> None:
    write_modules(model, "Transformer", "Pooling", path=path)
    with pytest.raises(InvalidCheckpoint, match=reason):
        read_pooling_config(model, SIZE)


@pytest.mark.parametrize("text", ["{}", "[1]", "[", "[]"])
def test_a_damaged_list_of_modules_is_refused(model: Path, text: str) -> None:
    (model / "modules.json").write_text(text)
    with pytest.raises(InvalidCheckpoint, match=r"modules\.json"):
        read_pooling_config(model, SIZE)


@pytest.mark.parametrize("name", ["BertModel", "XLMRobertaModel", "ModernBertModel"])
def test_encoders_are_refused_by_name(model: Path, name: str) -> None:
    change_config(model, architectures=[name])
    with pytest.raises(UnsupportedModel, match=f"{name}. is not supported .it is an encoder"):
        read_model_config(model)


@pytest.mark.parametrize("change", [{"is_causal": False}, {"use_bidirectional_attention": True}])
def test_bidirectional_attention_is_refused(model: Path, change: dict[str, bool]) -> None:
    change_config(model, **change)
    with pytest.raises(UnsupportedModel, match="attention to later tokens"):
        read_model_config(model)


def test_models_without_head_are_read_as_causal(model: Path) -> None:
    assert not read_model_config(model).may_lack_head
    change_config(model, architectures=["Qwen3Model"])
    config = read_model_config(model)
    assert (config.architecture, config.may_lack_head) == ("Qwen3ForCausalLM", True)
