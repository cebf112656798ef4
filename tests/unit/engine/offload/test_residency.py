"""Division of the memory for weights."""

import pytest

from baton.engine.errors import EngineError
from baton.engine.offload.config import OffloadConfig
from baton.engine.offload.layout import Unit, total_bytes
from baton.engine.offload.residency import Residency, spread

PAGE = 4096


def layers(sizes: list[int], num_experts: int = 0) -> list[Unit]:
    units, offset = [], 0
    for layer, size in enumerate(sizes):
        for expert in (None, *range(num_experts)):
            num_bytes = PAGE * (size if expert is None else 1)
            units.append(Unit(layer, expert, offset, num_bytes, ""))
            offset += num_bytes
    return units


def divided(units: list[Unit], memory: int | None, experts: int | None = None, other: int = 0) -> Residency:
    return Residency.of(units, other, 2, OffloadConfig("disk", None, memory, experts))


def test_all_weights_stay_without_a_limit() -> None:
    units = layers([3, 3, 3], 4)
    assert divided(units, None) == Residency(tuple(units), {}, 0)


def test_resident_layers_are_spread_between_those_that_stream() -> None:
    units = layers([1] * 10)
    found = divided(units, 7 * PAGE)
    assert [unit.layer for unit in found.resident] == [1, 3, 5, 7, 9]
    assert list(found.streamed) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("memory", range(2, 14))
def test_the_limit_holds_for_resident_layers_and_buffers(memory: int) -> None:
    sizes = {layer: size * PAGE for layer, size in enumerate([1, 2, 1, 1, 2, 1, 1, 2, 1, 1])}
    kept = spread(sizes, (memory + 2) * PAGE)
    streamed = sizes.keys() - kept
    assert sum(sizes[layer] for layer in kept) + (4 * PAGE if streamed else 0) <= (memory + 2) * PAGE
    assert len(streamed) not in (1, 2), "two buffers hold them"


def test_experts_get_what_the_layers_leave() -> None:
    units = layers([3, 3], num_experts=8)
    found = divided(units, 16 * PAGE, other=PAGE)
    assert found.streamed == {}
    assert found.expert_bytes == 9 * PAGE
    assert all(unit.expert is None for unit in found.resident)


def test_all_experts_stay_if_they_fit() -> None:
    units = layers([3, 3], num_experts=8)
    found = divided(units, total_bytes(units))
    assert set(found.resident) == set(units)
    assert found.expert_bytes == 0


def test_layers_stream_too_if_experts_get_a_given_part() -> None:
    units = layers([2] * 6, num_experts=8)
    found = divided(units, 14 * PAGE, experts=4 * PAGE)
    assert found.expert_bytes == 4 * PAGE
    assert 0 < len(found.streamed) < 6


def test_too_little_memory_is_refused_with_what_would_do() -> None:
    units = layers([3, 3, 3], num_experts=8)
    with pytest.raises(EngineError, match=f"is {5 * PAGE}, but must be at least {9 * PAGE}: {PAGE} for embeddings"):
        divided(units, 5 * PAGE, other=PAGE)
    assert divided(units, 9 * PAGE, other=PAGE).expert_bytes == 2 * PAGE
    with pytest.raises(EngineError, match=f"expert_cache_bytes is {PAGE}, but must be at least {2 * PAGE}"):
        divided(units, None, experts=PAGE)
