"""The cache of experts, from a real file, and products of experts that it holds."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton.engine.layers.experts import AdaptedRows
from baton.engine.lora.segmented_experts import SegmentedExpertAddends
from baton.engine.offload.address_space import PAGE
from baton.engine.offload.cached_experts import CachedExperts
from baton.engine.offload.counters import OffloadCounters
from baton.engine.offload.expert_cache import HALF_LIFE, ExpertCache
from baton.engine.offload.layout import Unit
from baton.engine.offload.unit_reads import UnitReads
from tests.unit.engine.offload.file_rig import FileRig, written

NUM_EXPERTS = 8


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[FileRig]:
    with written(tmp_path / "weights", num_layers=2, num_experts=NUM_EXPERTS) as rig:
        yield rig


def cache_of(rig: FileRig, num_experts: int) -> ExpertCache:
    units = {
        layer: {unit.expert: unit for unit in rig.units if unit.layer == layer and unit.expert is not None}
        for layer in range(2)
    }
    return ExpertCache(rig.reader, units, num_experts * units[0][0].num_bytes)


def use(rig: FileRig, cache: ExpertCache, layer: int, *experts: int) -> list[tuple[int, ...]]:
    """Return the waves; each of them is in memory when it comes."""
    waves = []
    for wave in cache.waves(layer, experts):
        assert all(rig.has(layer, expert) for expert in wave)
        waves.append(wave)
    assert sorted(expert for wave in waves for expert in wave) == sorted(experts)
    return waves


def test_what_is_there_is_computed_while_the_rest_is_read(rig: FileRig) -> None:
    cache = cache_of(rig, 6)
    assert use(rig, cache, 0, 1, 2, 3) == [(1, 2, 3)]
    assert use(rig, cache, 0, 2, 3, 5) == [(2, 3), (5,)]
    assert use(rig, cache, 0, 1, 5) == [(1, 5)]
    assert (rig.reader.counters.num_expert_hits, rig.reader.counters.num_expert_misses) == (4, 4)


def test_more_experts_than_fit_come_in_waves(rig: FileRig) -> None:
    cache = cache_of(rig, 3)
    assert use(rig, cache, 0, *range(8)) == [(0, 1, 2), (3, 4, 5), (6, 7)]
    assert len(rig.resident) <= 3


def test_hits_that_fill_the_cache_leave_room_once_they_are_computed(rig: FileRig) -> None:
    cache = cache_of(rig, 3)
    use(rig, cache, 0, 0, 1, 2)
    assert use(rig, cache, 0, *range(5)) == [(0, 1, 2), (3, 4)]


def test_the_least_used_expert_makes_room(rig: FileRig) -> None:
    cache = cache_of(rig, 3)
    for _ in range(3):
        use(rig, cache, 0, 0)
        use(rig, cache, 1, 1)
    use(rig, cache, 0, 2)
    use(rig, cache, 0, 3)
    assert rig.resident == {(0, 0), (1, 1), (0, 3)}


def test_uses_age(rig: FileRig) -> None:
    cache = cache_of(rig, 2)
    for _ in range(5):
        use(rig, cache, 0, 0)
    for _ in range(8 * HALF_LIFE):
        use(rig, cache, 0, 1)
    use(rig, cache, 0, 2)
    assert (0, 1) in rig.resident
    for _ in range(3):  # more than the five uses of long ago count
        use(rig, cache, 0, 0)
    use(rig, cache, 0, 3)
    assert (0, 2) not in rig.resident


def test_scores_stay_finite(rig: FileRig) -> None:
    cache = cache_of(rig, 2)
    cache._use = 1e300
    use(rig, cache, 0, 0)
    use(rig, cache, 0, 1)
    assert max(cache._scores.values()) < 1e10
    use(rig, cache, 0, 2)
    assert rig.resident == {(0, 1), (0, 2)}


def test_random_uses_keep_to_the_limit(rig: FileRig) -> None:
    draw, cache = random.Random(3), cache_of(rig, 5)
    for _ in range(60):
        use(rig, cache, draw.randrange(2), *draw.sample(range(NUM_EXPERTS), draw.randrange(1, 9)))
        assert len(rig.resident) <= 5


class NoReads:
    """A reader of nothing; it remembers what was dropped."""

    def __init__(self) -> None:
        self.counters = OffloadCounters()
        self.dropped: list[Unit] = []

    def start(self, units: Iterable[Unit]) -> UnitReads:
        return UnitReads((), self.counters)

    def drop(self, unit: Unit) -> None:
        self.dropped.append(unit)


def test_room_is_made_without_a_look_at_all_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    units = {0: {expert: Unit(0, expert, expert * PAGE, PAGE, "") for expert in range(3000)}}
    reader = NoReads()
    cache = ExpertCache(reader, units, 2990 * PAGE)  # type: ignore[arg-type]
    for _ in cache.waves(0, range(2990)):
        pass
    looks: Counter[str] = Counter()
    whole = Unit.__hash__
    monkeypatch.setattr(Unit, "__hash__", lambda unit: looks.update(["hash"]) or whole(unit))
    for expert in range(2990, 3000):
        assert list(cache.waves(0, [expert])) == [(expert,)]
    assert [unit.expert for unit in reader.dropped] == list(range(10))
    assert looks["hash"] < 300


def test_random_uses_drop_the_experts_of_the_lowest_scores() -> None:
    units = {layer: {e: Unit(layer, e, (20 * layer + e) * PAGE, PAGE, "") for e in range(20)} for layer in range(3)}
    draw, reader = random.Random(4), NoReads()
    cache = ExpertCache(reader, units, 30 * PAGE)  # type: ignore[arg-type]
    cache._use = 2.0**500  # scores are made smaller on the way
    for step in range(3000):
        layer, before, num_dropped = step % 3, set(cache._resident), len(reader.dropped)
        needed = draw.sample(range(20), draw.randrange(1, 9))
        assert [expert for wave in cache.waves(layer, needed) for expert in wave if expert not in needed] == []
        evictable = before - {units[layer][expert] for expert in needed}
        dropped = set(reader.dropped[num_dropped:])
        lowest = sorted(evictable, key=lambda unit: (cache._scores[unit], unit.offset))
        assert dropped == set(lowest[: len(dropped)])
        assert len(cache._resident) <= 30
    assert len(reader.dropped) > 1000


class RowProducts:
    """Adds each expert's weight and the rows' adapters to its rows; counts which experts were computed at once."""

    def __init__(self, rig: FileRig, layer: int) -> None:
        self.rig = rig
        self.layer = layer
        self.calls: Counter[tuple[int, ...]] = Counter()

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor, adapted: AdaptedRows | None = None) -> Tensor:
        assert not isinstance(sizes, Tensor)
        self.calls[tuple(expert for expert, size in enumerate(sizes) if size)] += 1
        weights = [self.rig.weights[self.layer, expert][0, 0].expand(size) for expert, size in enumerate(sizes)]
        adapters = 0 if adapted is None else adapted.adapters[:, None]
        return rows + torch.cat(weights)[:, None] + adapters


def test_rows_are_those_of_all_experts_at_once(rig: FileRig) -> None:
    products = RowProducts(rig, 1)
    experts = CachedExperts(products, cache_of(rig, 3), layer=1)
    sizes = [2, 0, 1, 3, 0, 1, 1, 4]
    rows = torch.arange(12)[:, None].expand(12, 5)
    numbers = torch.cat([torch.full((size,), 101 + expert) for expert, size in enumerate(sizes)])
    for _ in range(2):
        assert torch.equal(experts(rows, sizes), rows + numbers[:, None])
    adapters = torch.arange(12) * 1000
    adapted = AdaptedRows(adapters, SegmentedExpertAddends([], range(0)))
    few = CachedExperts(products, cache_of(rig, 3), layer=1)
    assert torch.equal(few(rows, sizes, adapted), rows + numbers[:, None] + adapters[:, None])
    assert (0, 2, 3) in products.calls
    assert torch.equal(experts(rows[:2], [0, 0, 0, 0, 0, 2, 0, 0]), rows[:2] + 106)
