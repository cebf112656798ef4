"""Options that do not go together, and models that cannot be offloaded."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.cli.options.model_source import BUNDLED
from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.engine import Engine
from baton.engine.errors import UnsupportedModel
from baton.engine.moe import MoEConfig
from baton.engine.offload.check import check_offload
from baton.settings.values import OptionError
from tests.unit.engine.offload.offload_rig import config_of

DENSE = replace(read_model_config(BUNDLED), moe=None)
MIXTURE = replace(DENSE, moe=MoEConfig(num_experts=8, num_experts_per_token=2, intermediate_size=64))


@pytest.mark.parametrize(
    ("options", "model", "ranks", "message"),
    [
        ({"weights_offload": "disk"}, DENSE, 2, "not supported with tensor_parallel"),
        ({"weights_offload": "host"}, DENSE, 1, "host is for GPUs: .* Set it to disk"),
        ({"weights_offload": "disk", "device": "cuda"}, DENSE, 1, "disk is for CPUs: on a GPU set it to host"),
        ({"weights_offload": "host", "device": "cuda"}, MIXTURE, 1, "not supported for mixtures of experts"),
        ({"weights_offload": "disk", "expert_cache_bytes": 1}, DENSE, 1, "expert_cache_bytes: .* has no experts"),
    ],
)
def test_what_does_not_combine_is_refused(options: dict[str, Any], model: Any, ranks: int, message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        check_offload(config_of(BUNDLED, **options), model, ranks, is_expert_parallel=False)


def test_expert_parallel_is_refused() -> None:
    config = config_of(BUNDLED, weights_offload="disk")
    with pytest.raises(UnsupportedModel, match="not supported with expert_parallel"):
        check_offload(config, MIXTURE, 1, is_expert_parallel=True)


def test_without_offload_everything_combines() -> None:
    check_offload(config_of(BUNDLED), MIXTURE, 8, is_expert_parallel=True)


@pytest.mark.parametrize("name", ["weights_offload_dir", "weights_memory_bytes", "expert_cache_bytes"])
def test_options_without_offload_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} needs weights_offload"):
        config_of(BUNDLED, **{name: "x" if name.endswith("dir") else 5})


def test_a_layout_of_onednn_is_refused(tmp_path: Path) -> None:
    config = config_of(BUNDLED, dtype="float32", weights_offload="disk", weights_offload_dir=str(tmp_path))
    with pytest.raises(UnsupportedModel, match="set dtype bfloat16"):
        Engine(config)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
