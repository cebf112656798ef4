"""Decodes that are recorded once and replayed, compared with the eager model; CUDA graphs themselves need a GPU.

The recorder here calls the recorded function again, with the Python objects of the recording: values that are not in
the static tensors are stale, as they would be in a graph.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from baton.engine.attention.flashinfer import FlashInferAttention
from baton.engine.attention.heads import AttentionHeads
from baton.engine.config import ModelConfig
from baton.engine.execution.cuda_graphs import GraphedModel, Replay, can_be_recorded, recorded_sizes
from baton.engine.models.causal_lm import CausalLM
from baton.engine.models.hidden_states import HiddenStates
from baton.engine.vision.image_tokens import ImageTokens
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.emulation.flashinfer_emulation import EMULATION
from tests.vision_checkpoints import make_vision_checkpoint

MAX_BLOCKS = 8


class Recomputing:
    """Recorder whose replays call the recorded function again."""

    def __init__(self) -> None:
        self.num_replays = 0

    def record(self, compute: Callable[[], object]) -> Replay:
        compute()

        def replay() -> None:
            self.num_replays += 1
            compute()

        return replay


def attention_of(config: ModelConfig, block_size: int) -> FlashInferAttention:
    return FlashInferAttention(
        config.attention_scale,
        block_size,
        AttentionHeads.of(config),
        CPU,
        1,
        EMULATION,
        soft_cap=config.attention_soft_cap,
        spans=config.spans,
    )


def eager_model(directory: Path) -> PagedModel:
    return PagedModel(directory, dtype="float32", attention_of=attention_of)


def graphed_model(directory: Path, sizes: list[int]) -> tuple[PagedModel, Recomputing]:
    paged, recorder = eager_model(directory), Recomputing()
    assert isinstance(paged.model, CausalLM)
    shares: list[float] = []
    paged.model = GraphedModel(paged.model, paged.pool, sizes, MAX_BLOCKS, recorder, shares.append)
    assert shares == [(place + 1) / len(sizes) for place in range(len(sizes))]
    return paged, recorder


@pytest.fixture(
    scope="module",
    params=["llama3", "deepseek-v3", *map(slow_case, ("gemma2", "gpt-oss", "mistral-window"))],
)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")


def tokens(draw: random.Random, count: int) -> list[int]:
    return draw.choices(range(3, VOCAB_SIZE), k=count)


@pytest.mark.parametrize("architecture", ["llama3", "qwen3.5"])
def test_recurrent_models_are_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture, architecture: str) -> None:
    paged, is_recurrent = eager_model(make_checkpoint(architecture, tmp_path)), architecture == "qwen3.5"
    assert isinstance(paged.model, CausalLM)
    assert can_be_recorded(paged.model) == (not is_recurrent)
    assert ("not captured as CUDA graphs: the blocks of recurrent states" in caplog.text) == is_recurrent


def test_replays_equal_eager_steps(directory: Path) -> None:
    """Sequences start, grow beyond their blocks and end; batches have all sizes, mixed ones and too large ones too."""
    draw = random.Random(1)
    graphed, recorder = graphed_model(directory, [1, 2, 4])
    eager = eager_model(directory)
    running: list[str] = []
    decodes = 0
    for number in range(40):
        step: dict[str, list[int]] = {name: tokens(draw, 1) for name in running}
        if number % 5 == 0:
            name = f"s{number}"
            step[name] = tokens(draw, draw.choice((1, 7, 31)))
            running.append(name)
        decodes += len(step) <= 4 and all(len(new) == 1 for new in step.values())
        found, expected = graphed.step(step), eager.step(step)
        for name in step:
            torch.testing.assert_close(found[name], expected[name])
        torch.testing.assert_close(graphed.pool[1:], eager.pool[1:])  # padding never shows up in a request's block
        if len(running) > 5:
            running.remove(draw.choice(running))
    assert recorder.num_replays == decodes > 10


def test_replays_read_the_positions_behind_images(tmp_path: Path) -> None:
    directory = make_vision_checkpoint(tmp_path / "model")
    graphed, recorder = graphed_model(directory, [1, 2, 4])
    eager = eager_model(directory)
    draw = random.Random(2)
    step = {"a": tokens(draw, 9), "b": tokens(draw, 20), "c": tokens(draw, 3)}
    found = []
    for paged in (graphed, eager):
        paged.step(step)
        batch = paged.batch(list(step), [[5], [6], [7]])
        shifted = replace(batch, rotary_positions=batch.positions - 2)
        found.append(paged.model.forward(shifted, paged.pool).clone())
    torch.testing.assert_close(found[0], found[1])
    assert recorder.num_replays == 1


@pytest.mark.parametrize("layers", [(), (0, 2)])
def test_replays_leave_hidden_states(tmp_path: Path, layers: tuple[int, ...]) -> None:
    """In the slots of the tokens' KV, as eager steps do, for draft heads."""
    directory = make_checkpoint("llama3", tmp_path / "model")
    found = []
    for paged in (eager_model(directory), eager_model(directory)):
        assert isinstance(paged.model, CausalLM)
        width = paged.model.embedding.nothing().shape[1] * max(len(layers), 1)
        rows = torch.zeros(len(paged.pool) * 16, width)
        paged.model.hidden_states = HiddenStates(layers, None, rows)
        if found:
            paged.model = GraphedModel(paged.model, paged.pool, [1, 2, 4], MAX_BLOCKS, Recomputing())
        draw = random.Random(3)
        paged.step({"a": tokens(draw, 9), "b": tokens(draw, 3), "c": tokens(draw, 1)})
        for _ in range(3):
            paged.step({name: tokens(draw, 1) for name in "abc"})
        found.append(rows)
    assert found[0].any(1).sum() > 16
    torch.testing.assert_close(found[0][16:], found[1][16:])  # the null block gets those of padding


def test_a_step_with_an_image_is_not_replayed(tmp_path: Path) -> None:
    graphed, recorder = graphed_model(make_vision_checkpoint(tmp_path / "model"), [1])
    batch = graphed.batch(["a"], [[5]])
    images = ImageTokens(torch.zeros(1, dtype=torch.int64), batch.positions.expand(3, 1))
    vectors = torch.zeros(1, 64)
    graphed.model.forward(
        replace(batch, rotary_positions=batch.positions, images=images, image_vectors=vectors), graphed.pool
    )
    assert recorder.num_replays == 0


def test_recorded_sizes_are_close_to_each_other() -> None:
    assert recorded_sizes(1) == [1]
    assert recorded_sizes(4) == [1, 2, 4]
    assert recorded_sizes(20) == [1, 2, 4, 8, 16, 20]
    sizes = recorded_sizes(512)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == 512
    assert all(after - before <= 16 for before, after in pairwise(sizes))
