"""Each adapter of experts that cannot be used is refused with the reason."""

from pathlib import Path

import pytest
import torch

from baton.engine.engine import Engine
from tests.adapters import write_adapter
from tests.checkpoints import make_checkpoint
from tests.unit.engine.lora.lora_rig import lora_engine
from tests.unit.engine.lora.test_invalid_adapters import LAYER, refusal


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return lora_engine(make_checkpoint("qwen3-moe", tmp_path_factory.mktemp("mixture") / "model"))


EXPERT = f"{LAYER}.mlp.experts"
PARAMETERS = {"target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}


def pair(module: str, inputs: int, outputs: int, ranks: int = 4) -> dict[str, torch.Tensor]:
    return {f"{module}.lora_A.weight": torch.ones(ranks, inputs), f"{module}.lora_B.weight": torch.ones(outputs, ranks)}


def of_experts(directory: Path, tensors: dict[str, torch.Tensor], **options: object) -> Path:
    given: dict[str, object] = {"peft_type": "LORA", "r": 4, "lora_alpha": 4, "peft_version": "0.21.0"}
    write_adapter(directory, tensors, given | options)
    return directory


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (
            pair(f"{EXPERT}.8.up_proj", 64, 32),
            "experts.8.up_proj does not exist: the model's layers have the experts 0 to",
        ),
        (
            pair(f"{EXPERT}.3.up_proj", 64, 48),
            "experts.3.up_proj are for 64 inputs and 48 outputs, but the model has 64",
        ),
        (pair(f"{EXPERT}.3.w1", 64, 32), "the model has no layer model.layers.0.mlp.experts.3.w1 that can be changed"),
        (
            pair(EXPERT, 32, 64, 32),
            "has the matrices of a parameter, but target_parameters names 0 of its 2: gate_up_proj",
        ),
        (pair(f"{LAYER}.mlp.gate", 64, 9), "mlp.gate are for 64 inputs and 9 outputs, but the model has 64 and 8"),
    ],
    ids=["number", "shape", "name", "parameter", "router"],
)
def test_experts(mixture: Engine, tmp_path: Path, tensors: dict[str, torch.Tensor], expected: str) -> None:
    assert expected in refusal(mixture, of_experts(tmp_path / "a", tensors))


def test_parameters_with_all_experts(mixture: Engine, tmp_path: Path) -> None:
    def refused(tensors: dict[str, torch.Tensor], **options: object) -> str:
        return refusal(mixture, of_experts(tmp_path / "a", tensors, **(PARAMETERS | options)))

    down, separate = pair(EXPERT, 32, 64, 32), pair(f"{EXPERT}.3.down_proj", 32, 64)
    gate_up = pair(f"{EXPERT}.base_layer", 64, 64, 32)
    assert "experts.down_proj are [28, 32] and [64, 28], but must be [32, 32] and [64, 32]" in refused(
        pair(EXPERT, 32, 64, 28)
    )
    assert "8 experts of 32 inputs and 64 outputs" in refused(pair(EXPERT, 48, 64, 32))
    assert "but max_lora_rank is 16; start with --max-lora-rank 20" in refused(pair(EXPERT, 32, 64, 160), r=20)
    assert "target_parameters names 1 of its 2" in refused(gate_up, target_parameters=["experts.down_proj"])
    assert "are changed twice, as single modules and as the parameter down_proj" in refused(down | separate)
    both = pair(f"{EXPERT}.3.gate_up_proj", 64, 64) | pair(f"{EXPERT}.3.up_proj", 64, 32)
    assert "experts.3.gate_up_proj is changed twice, as one projection and as two" in refused(both)
    assert "has values that are not finite" in refused(
        {name: each.fill_(torch.nan) if "lora_B" in name else each for name, each in gate_up.items()} | down
    )
    assert "has no lora_magnitude_vector" in refused(down, use_dora=True)
    of_all = down | {f"{EXPERT}.lora_magnitude_vector": torch.ones(64)}
    assert "experts.down_proj' cannot have DoRA, as in PEFT" in refused(of_all, use_dora=True)
    magnitude = {f"{EXPERT}.3.gate_up_proj.lora_magnitude_vector": torch.ones(64)}
    fused = pair(f"{EXPERT}.3.gate_up_proj", 64, 64) | magnitude
    assert "cannot have DoRA, since it is two projections of an expert; train gate_proj and up_proj" in refused(
        fused, use_dora=True
    )
    assert "cannot be changed by an activated adapter, as in PEFT" in refused(down, alora_invocation_tokens=[5])
    assert "target_parameters must be a list of strings" in refused(down, target_parameters="experts.down_proj")
    mixture.adapters.load("b", of_experts(tmp_path / "b", down, **PARAMETERS))
    mixture.adapters.unload("b")
