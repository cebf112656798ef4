"""References: wrong outputs are found, and checkpoints differ where their options do."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.oracle import Oracle

COUNT = 8
PROMPT = [5, 9, 200, 31, 7]


@pytest.mark.parametrize("architecture", ["llama3", *map(slow_case, ("gpt-oss", "qwen3-next", "bamba", "mamba2"))])
def test_a_wrong_draft_does_not_change_the_reference(architecture: str, tmp_path: Path) -> None:
    oracle = Oracle(make_checkpoint(architecture, tmp_path))
    expected = oracle.greedy(PROMPT, COUNT)
    assert len(set(expected)) > 2
    for place in range(COUNT):
        wrong = [*expected]
        wrong[place] = (wrong[place] + 1) % VOCAB_SIZE
        assert oracle.greedy(PROMPT, COUNT, wrong) == expected
    for num_tokens in range(COUNT + 1):
        assert oracle.greedy(PROMPT, COUNT, expected[:num_tokens]) == expected
    assert oracle.greedy(PROMPT, COUNT, [*expected, 3]) == expected


def test_copies_of_saved_checkpoints_differ_where_their_options_do(tmp_path: Path) -> None:
    def weights(name: str, **options: Any) -> bytes:
        directory = make_checkpoint("llama3", tmp_path / name, num_hidden_layers=1, **options)
        content = (directory / "model.safetensors").read_bytes()
        for file in directory.iterdir():
            file.write_bytes(b"")  # the next copy must not have this
        return content

    first = weights("first")
    assert len(first) > 1000
    assert weights("again") == first
    others: list[dict[str, Any]] = [{"seed": 1}, {"dtype": torch.bfloat16}, {"num_key_value_heads": 4}]
    contents = [weights(f"{place}", **options) for place, options in enumerate(others)]
    assert len({first, *contents}) == 1 + len(others)
