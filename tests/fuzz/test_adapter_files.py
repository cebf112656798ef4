"""Damaged LoRA adapters: each is loaded, or refused with an InvalidAdapter."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from baton.engine.engine import Engine
from baton.engine.errors import InvalidAdapter
from tests.adapters import make_adapter, write_adapter
from tests.checkpoints import make_checkpoint
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.mutations import damaged_bytes, damaged_json, odd_texts
from tests.fuzz.test_checkpoint import joined, split
from tests.marks import slow_case
from tests.unit.engine.lora.lora_rig import lora_engine

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PATTERNS = {"rank_pattern": {"q_proj": 4}, "alpha_pattern": {r"layers\.0\..*": 3}}


@pytest.fixture(scope="module", params=["llama3", slow_case("qwen3-moe")])
def engine(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Engine:
    return lora_engine(make_checkpoint(request.param, tmp_path_factory.mktemp("lora") / "model", num_hidden_layers=1))


@pytest.fixture
def adapter(engine: Engine, tmp_path: Path) -> Path:
    if engine.model_config.moe is None:
        return make_adapter(Path(engine.config.model), tmp_path / "adapter", ["q_proj", "down_proj"], **PATTERNS)
    experts = "base_model.model.model.layers.0.mlp.experts"
    tensors = {
        f"{experts}.base_layer.lora_A.weight": torch.ones(32, 64),
        f"{experts}.base_layer.lora_B.weight": torch.ones(64, 32),
        f"{experts}.lora_A.weight": torch.ones(32, 32),
        f"{experts}.lora_B.weight": torch.ones(64, 32),
    }
    parameters = ["experts.gate_up_proj", "experts.down_proj"]
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "peft_version": "0.21.0", "target_parameters": parameters}
    write_adapter(tmp_path / "adapter", tensors, config | PATTERNS)
    return tmp_path / "adapter"


def loads(engine: Engine, adapter: Path) -> bool:
    """Load an adapter; return False if it is refused. Fails for any other outcome."""
    try:
        engine.adapters.load("a", adapter)
    except InvalidAdapter as error:
        assert str(error).isprintable()  # noqa: PT017  # though it names parts of files
        return False
    engine.adapters.unload("a")
    assert not engine.adapters.resident_numbers()
    return True


def test_damaged_adapters_are_loaded_or_refused(fuzzing: Fuzzing, engine: Engine, adapter: Path) -> None:
    assert loads(engine, adapter)
    config, tensors = (adapter / CONFIG).read_text(), (adapter / TENSORS).read_bytes()
    header, data = split(tensors)

    def check_config(damaged: Any) -> None:
        (adapter / CONFIG).write_text(json.dumps(damaged))
        loads(engine, adapter)
        (adapter / CONFIG).write_text(config)

    def check_tensors(damaged: bytes) -> None:
        (adapter / TENSORS).write_bytes(damaged)
        loads(engine, adapter)

    def check_header(damaged: Any) -> None:
        check_tensors(joined(json.dumps(damaged).encode(), data))

    named = st.dictionaries(odd_texts, st.just(next(iter(header.values()))))
    fuzzing.run_all(
        [
            (damaged_json(json.loads(config)), check_config),
            (damaged_bytes(tensors), check_tensors),
            (damaged_json(header), check_header),
            (named, check_header),
        ],
        6,
    )
