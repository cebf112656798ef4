"""Adapters of models that take images change the language model alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from baton.engine.engine import Engine
from baton.engine.errors import InvalidAdapter
from baton.engine.vision.image import Image
from tests.marks import slow_case
from tests.unit.engine.lora.lora_rig import GREEDY, lora_engine, request, run
from tests.vision_checkpoints import VisionOracle, make_vision_checkpoint, prompt_of, random_image, random_text

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # PEFT uses it
]

Prompt = tuple[list[int], tuple[Image, ...]]
PROMPTS: dict[str, Prompt] = {
    "images": prompt_of([random_text(7, 1), random_image(3, 5, 1), random_text(9, 2), random_image(2, 2, 2)]),
    "text": prompt_of([random_text(40, 6)]),
}
TARGETS: dict[str, str | Sequence[str]] = {
    "attention": ["q_proj", "v_proj"],  # of the encoder, all are called otherwise
    "all": r".*language_model\.layers.*_proj",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_checkpoint(tmp_path_factory.mktemp("qwen2_5_vl") / "model")


def saved_by_peft(model: Path, directory: Path, targets: str | Sequence[str], seed: int, **options: Any) -> Path:
    """Save an adapter with random matrices, as PEFT makes it for the model with its encoder."""
    from peft import LoraConfig, get_peft_model  # heavy

    targets = targets if isinstance(targets, str) else list(targets)
    made = get_peft_model(VisionOracle(model).model, LoraConfig(r=4, target_modules=targets, **options))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (each for each in made.parameters() if each.requires_grad):
            parameter += torch.randn(parameter.shape, generator=draw) * 0.3
    made.save_pretrained(str(directory))
    return directory


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("adapters")
    return {
        name: saved_by_peft(model, directory / name, targets, seed, use_dora=name == "all")
        for seed, (name, targets) in enumerate(TARGETS.items())
    }


@pytest.fixture(scope="module")
def expected(model: Path, adapters: dict[str, Path]) -> dict[str, list[int]]:
    """The tokens of transformers, and those of PEFT, for each prompt."""
    from peft import PeftModel  # heavy

    tokens = {}
    for name, adapter in (("None", None), *adapters.items()):
        oracle = VisionOracle(model)
        if adapter is not None:
            oracle.model = PeftModel.from_pretrained(oracle.model, str(adapter))
        tokens |= {f"{name} {each}": oracle.greedy(*prompt, GREEDY.max_tokens) for each, prompt in PROMPTS.items()}
    assert len({tuple(each) for each in tokens.values()}) == len(tokens)
    return tokens


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 6},  # chunks of images and texts with and without adapters
        slow_case({}),
        slow_case({"async_scheduling": True}),
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_tokens_are_those_of_peft(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]], options: dict[str, object]
) -> None:
    engine = lora_engine(model, **options)
    for name, path in adapters.items():
        engine.adapters.load(name, path)
    for _ in range(2):  # the second time the prompts are in the prefix cache
        assert run(engine, *of_all()) == expected


def of_all() -> list[Any]:
    return [
        request(f"{name} {each}", tokens, name, images=images)
        for name in (None, *TARGETS)
        for each, (tokens, images) in PROMPTS.items()
    ]


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return lora_engine(model)


def test_modules_of_the_encoder_are_refused_by_name(model: Path, engine: Engine, tmp_path: Path) -> None:
    adapter = saved_by_peft(model, tmp_path / "a", ["down_proj"], 1)
    message = r"visual\.blocks\.\d\.mlp\.down_proj \(and 2 more\) is not of the language model, and cannot be changed; "
    with pytest.raises(InvalidAdapter, match=f"{message}train with exclude_modules"):
        engine.adapters.load("a", adapter)
    without = saved_by_peft(model, tmp_path / "b", ["down_proj"], 1, exclude_modules=r".*visual.*")
    assert engine.adapters.load("b", without).target_modules == ("down_proj",)
