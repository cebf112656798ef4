"""A model, and adapters of it."""

from pathlib import Path

import pytest

from tests.adapters import ALL_TARGETS, make_adapter
from tests.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("lora") / "model")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters of all modules, of attention alone with DoRA, and of one module with another rank."""
    directory = tmp_path_factory.mktemp("adapters")
    return {
        "all": make_adapter(model, directory / "all", [*ALL_TARGETS, "embed_tokens", "lm_head"], seed=1),
        "attention": make_adapter(model, directory / "attention", ["q_proj", "v_proj"], rank=8, seed=2, use_dora=True),
        "down": make_adapter(model, directory / "down", ["down_proj"], rank=3, seed=3),
    }
