"""Rows sorted by slot: their places, and equality of the compiled and the torch version."""

import random

import pytest
import torch

from baton.engine.experts import permutation as expert_rows
from baton.engine.experts.permutation import rows_by_slot
from baton.engine.layers.experts import ROW_TILE

pytest.importorskip("baton.engine.native.layer_ops", reason="nothing was compiled when this was installed")

from baton.engine.native.layer_ops import sort_rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(20))
def test_compiled_and_torch_versions_agree(seed: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    num_tokens, num_chosen, num_slots = draw.choice([0, 1, 2, 50]), draw.randint(1, 4), draw.randint(1, 9)
    x = torch.randn(num_tokens, 6, generator=torch.Generator().manual_seed(seed)).to(dtype)
    num_entries = num_tokens * num_chosen
    slots = torch.tensor(draw.choices(range(num_slots), k=num_entries), dtype=torch.int64)
    some = torch.tensor(draw.choices(range(max(1, num_tokens)), k=num_entries), dtype=torch.int64)
    tile = draw.choice([1, ROW_TILE])
    for token_of in (None, some):
        found = rows_by_slot(x, token_of, slots, num_slots, tile)
        with monkeypatch.context() as patched:
            patched.setattr(expert_rows, "sort_rows", None)
            expected = rows_by_slot(x, token_of, slots, num_slots, tile)
        assert found.sizes == expected.sizes
        assert sum(found.sizes) == len(found.rows) == len(expected.rows)
        assert torch.equal(found.places, expected.places)
        tokens = torch.arange(num_entries) // num_chosen if token_of is None else token_of
        values = found.of_tokens(torch.arange(num_tokens), padding=-1)
        assert torch.equal(values[found.places], tokens)
        assert (values >= 0).sum() == num_entries
        first = 0
        for slot, size in enumerate(found.sizes):
            entries = (slots == slot).nonzero().flatten()
            assert size == -(-len(entries) // tile) * tile
            assert found.places[entries].tolist() == list(range(first, first + len(entries)))
            theirs = {tuple(row) for row in x[tokens[entries]].tolist()}
            for rows in (found.rows, expected.rows):
                assert torch.equal(rows[found.places[entries]], x[tokens[entries]])
                assert {tuple(row) for row in rows[first : first + size].tolist()} == theirs  # padding too
            first += size


def test_invalid_arguments_are_refused() -> None:
    x, slots, room = torch.zeros(2, 4), torch.tensor([0, 1, 2]), torch.zeros(64, 4)
    places, tokens = torch.zeros(3, dtype=torch.int64), torch.tensor([0, 1, 2])

    def run(num_tokens: int, token_of: int, num_slots: int) -> list[int]:
        ends = room.data_ptr(), places.data_ptr(), 2
        return sort_rows(x.data_ptr(), num_tokens, 16, token_of, slots.data_ptr(), 3, num_slots, 8, *ends)

    with pytest.raises(ValueError, match="tokens have not equally many entries"):
        run(2, 0, 3)
    with pytest.raises(ValueError, match="there is no such slot"):
        run(3, 0, 2)
    with pytest.raises(ValueError, match="there is no such token"):
        run(2, tokens.data_ptr(), 3)
