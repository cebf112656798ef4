"""Mamba-2 layers next to attention and without it in an engine: tokens are transformers', also from checkpoints."""

from pathlib import Path

import pytest
import torch

from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.oracle import Oracle, load_oracle
from tests.paged_model import PagedModel
from tests.unit.engine.test_recurrent_models import add, drain, engine_of, greedy_of, random_tokens


@pytest.mark.parametrize("architecture", [slow_case("falcon-h1"), "mamba2"])
def test_tokens_equal_transformers_from_a_checkpoint_of_the_state(architecture: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path)
    oracle = Oracle(model)
    engine, prompt = engine_of(model), random_tokens(70)
    again = [*prompt[:66], *random_tokens(9)]
    add(engine, "first", prompt)
    drain(engine)
    prompts = {"again": again, "new": random_tokens(33)}
    requests = [add(engine, *each) for each in prompts.items()]
    tokens = drain(engine)
    assert tokens == greedy_of(oracle, prompts, tokens)
    assert [request.num_cached_tokens for request in requests] == [64, 0]


def test_a_layer_without_attention_takes_no_room_for_kv(tmp_path: Path) -> None:
    """Attention and MLPs in layers of their own, and no recurrent state."""
    types = ["mlp", "full_attention", "mlp", "full_attention"]
    model = make_checkpoint("nemotron-h", tmp_path, layers_block_type=types)
    oracle = load_oracle(model)
    paged, tokens = PagedModel(model), random_tokens(70)
    assert paged.layout.block_shape[1] == 2
    with torch.no_grad():
        expected = oracle(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(paged.step({"s": tokens})["s"], expected, atol=1e-4, rtol=0)
