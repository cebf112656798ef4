"""Division of the budget between two pools that both want more."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.deployment.autoscaling.band import Band, bands, sharing, unhurried
from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.need import Need
from baton.deployment.autoscaling.prediction.pool_model import PoolModel
from baton.deployment.autoscaling.settings import PoolLimits
from baton.deployment.autoscaling.snapshot import Traffic
from baton.deployment.autoscaling.split import best_split, fit, goodput, sure_split
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, Planner, pool, sizes, snapshot, traffic

MANY = ByPool(1000, 1000)


@dataclass(frozen=True, slots=True)
class PowerModel:
    """A pool whose rate grows with a power of its size."""

    unit: float
    power: float = 1.0

    def predicted_s(self, num_replicas: int, requests_per_s: float) -> float:
        return requests_per_s / self.rate(num_replicas)

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        return requests_per_s <= self.rate(num_replicas)

    def rate(self, num_replicas: int) -> float:
        return self.unit * num_replicas**self.power


def budget(gpus: int, prefill: PoolLimits | None = None, decode: PoolLimits | None = None) -> Budget:
    return Budget(gpus, ByPool(prefill or PoolLimits(), decode or PoolLimits()))


def models(prefill: float, decode: float) -> ByPool[PoolModel]:
    return ByPool(PowerModel(prefill), PowerModel(decode))


def maybe(known: ByPool[PoolModel]) -> ByPool[PoolModel | None]:
    return ByPool(known.prefill, known.decode)


def test_the_split_maximizes_goodput_and_is_not_a_proportional_cut() -> None:
    needs = ByPool(12, 6)  # a proportional cut would give 6 and 3 of 9
    rates = models(2.0, 1.0)
    assert best_split(rates, needs, budget(9)) == ByPool(3, 6)
    assert goodput(rates, ByPool(3, 6)) == 6.0
    assert goodput(rates, ByPool(6, 3)) == 3.0


@settings(max_examples=200)
@given(
    st.floats(0.1, 10),
    st.floats(0.1, 10),
    st.floats(0.8, 1.2),
    st.integers(2, 40),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([None, 1, 3, 10]),
)
def test_no_other_split_has_more_goodput(
    prefill: float, decode: float, power: float, gpus: int, cost: int, other: int, most: int | None
) -> None:
    shared = budget(
        gpus + cost + other, PoolLimits(gpus_per_replica=cost, max_replicas=most), PoolLimits(gpus_per_replica=other)
    )
    rates: ByPool[PoolModel] = ByPool(PowerModel(prefill, power), PowerModel(decode))
    found = best_split(rates, MANY, shared)
    assert shared.cost(found) <= shared.gpus
    tried = [
        ByPool(one, (shared.gpus - one * cost) // other)
        for one in range(1, (most or shared.gpus) + 1)
        if one * cost + other <= shared.gpus
    ]
    assert goodput(rates, found) == pytest.approx(max(goodput(rates, sizes) for sizes in tried))


def test_no_pool_gets_more_than_it_needs() -> None:
    assert best_split(models(1.0, 1.0), ByPool(2, 20), budget(16)) == ByPool(2, 14)
    assert best_split(models(1.0, 1.0), ByPool(20, 2), budget(16)) == ByPool(14, 2)


def test_needs_that_fit_are_met() -> None:
    assert fit(maybe(models(1.0, 1.0)), ByPool(3, 5), ByPool(1, 1), budget(8), 0.15) == ByPool(3, 5)


def test_the_present_split_stays_if_it_is_nearly_as_good() -> None:
    rates, needs = maybe(models(1.0, 1.0)), ByPool(15, 15)
    assert fit(rates, needs, ByPool(9, 11), budget(20), 0.15) == ByPool(9, 11)
    assert fit(rates, needs, ByPool(7, 13), budget(20), 0.15) == ByPool(10, 10)
    assert fit(rates, needs, ByPool(9, 10), budget(20), 0.15) == ByPool(10, 10)  # one GPU is unused
    assert fit(rates, needs, ByPool(12, 11), budget(20), 0.15) == ByPool(10, 10)  # one GPU too few


def test_a_pool_gives_up_excess_replicas_and_gets_free_gpus() -> None:
    rates = maybe(models(2.0, 1.0))
    assert fit(rates, ByPool(3, 12), ByPool(4, 5), budget(9), 0.15) == ByPool(3, 6)
    assert fit(rates, ByPool(6, 12), ByPool(3, 4), budget(9), 0.15) == ByPool(3, 6)


def need(least: int, sure: int, model: PoolModel, chance: float = 0.0) -> Need:
    return Need(least, sure, least, 0, "", chance, model)


def test_in_a_certain_split_a_pool_keeps_the_replicas_that_it_needs() -> None:
    rates = models(1.0, 1.0)
    needs = ByPool(need(5, 3, rates.prefill), need(4, 2, rates.decode))
    assert sure_split(needs, ByPool(6, 1), budget(9)) == ByPool(5, 2)
    assert sure_split(needs, ByPool(1, 3), budget(9)) == ByPool(3, 3)


def test_a_certain_split_stays_unless_another_serves_twice_as_many() -> None:
    rates = models(1.0, 1.0)
    for wanted, chance, expected in (
        (ByPool(4, 16), 0.1, ByPool(10, 10)),  # 2.5 times as many; 2 * 1.1 * 1.1 is 2.42
        (ByPool(4, 16), 0.15, ByPool(4, 16)),
        (ByPool(6, 14), 0.0, ByPool(6, 14)),
    ):
        needs = ByPool(need(17, 17, rates.prefill, chance), need(17, 17, rates.decode, chance))
        assert sure_split(needs, wanted, budget(20)) == expected


def test_next_to_a_pool_without_measurements_the_other_gets_the_rest() -> None:
    rates = models(1.0, 1.0)
    assert fit(ByPool(None, rates.decode), ByPool(5, 9), ByPool(5, 2), budget(8), 0.15) == ByPool(5, 3)
    assert fit(ByPool(rates.prefill, None), ByPool(9, 5), ByPool(2, 5), budget(8), 0.15) == ByPool(3, 5)


def test_a_pool_keeps_the_size_that_holds_with_a_margin() -> None:
    found = bands(ByPool(2, 2), ByPool(3, 3), ByPool(5, 3), budget(9), SETTINGS)
    assert found == ByPool(
        Band(2, 3, SETTINGS.downscale_delay_s, SETTINGS.upscale_delay_s),
        Band(2, 3, SETTINGS.downscale_delay_s, SETTINGS.upscale_delay_s),
    )


def test_a_pool_gives_up_sooner_what_the_other_needs() -> None:
    found = bands(ByPool(2, 5), ByPool(5, 6), ByPool(6, 2), budget(8), SETTINGS)
    assert found.prefill == Band(2, 3, SETTINGS.shift_delay_s, SETTINGS.upscale_delay_s, is_pressed=True)  # 5 leave 3
    assert found.decode == Band(5, 6, SETTINGS.downscale_delay_s, SETTINGS.upscale_delay_s)


def test_sizes_cost_the_gpus_of_their_replicas() -> None:
    shared = budget(16, PoolLimits(gpus_per_replica=2, min_replicas=2), PoolLimits(gpus_per_replica=4, max_replicas=2))
    assert shared.cost(ByPool(3, 2)) == 14
    assert shared.most == ByPool(6, 2)
    assert shared.largest(ByPool(5, 2)) == ByPool(4, 1)
    assert shared.largest(ByPool(8, 4)) == ByPool(2, 1)  # never below the minimum
    assert shared.keeping(ByPool(5, 1)).least == ByPool(5, 1)
    assert shared.keeping(ByPool(5, 1)).most == ByPool(6, 1)


def test_a_change_that_is_not_urgent_waits_longer_than_a_window() -> None:
    band = Band(4, 5, SETTINGS.shift_delay_s, SETTINGS.upscale_delay_s, is_pressed=True)
    slow_up, slow_down = SETTINGS.upscale_delay_s + 60.0, SETTINGS.shift_delay_s + 60.0
    assert unhurried(band, 60.0, grow=False, shrink=False) == band
    assert unhurried(band, 60.0, grow=True, shrink=False) == replace(band, grow_delay_s=slow_up)
    assert unhurried(band, 60.0, grow=False, shrink=True) == replace(band, shrink_delay_s=slow_down)


def test_a_pool_gives_up_unneeded_replicas_first() -> None:
    band = Band(2, 2, SETTINGS.shift_delay_s, SETTINGS.upscale_delay_s, is_pressed=True)
    assert sharing(band, 2, 6, 60.0) == band
    assert sharing(band, 5, 6, 60.0) == replace(band, most=5)
    assert sharing(band, 5, 5, 60.0) == replace(band, shrink_delay_s=SETTINGS.shift_delay_s + 60.0)


ANSWERS, PROMPTS = traffic(40.0, prompt=1000, output=400), traffic(40.0, output=60)  # both too many for 8 GPUs
MOST_ANSWERS = traffic(60.0, prompt=1000, output=400)  # 2 + 6 serve three times as many as 6 + 2
MORE_ANSWERS = traffic(40.0, output=90)  # 5 + 3 serve 1.22 times as many as 6 + 2


def shared(loads: list[Traffic], start: tuple[int, int], turn_s: float = SETTINGS.turn_s) -> list[tuple[int, int]]:
    """Return the successive sizes of pools with 8 GPUs, with a load for every second."""
    planner, found = Planner(replace(SETTINGS, budget_gpus=8, turn_s=turn_s)), [start]
    for second, load in enumerate(loads):
        seen = snapshot(float(second), load, pool(found[-1][0]), pool(found[-1][1]))
        found.append(sizes(planner.plan(seen)))
    return found


@pytest.mark.parametrize(
    ("turn_s", "last", "ends"),
    [(600.0, MOST_ANSWERS, (2, 6)), (600.0, MORE_ANSWERS, (6, 2)), (0.0, MORE_ANSWERS, (5, 3))],
)
def test_pools_that_have_just_turned_change_their_split_only_beyond_chance(
    turn_s: float, last: Traffic, ends: tuple[int, int]
) -> None:
    found = shared([ANSWERS] * 100 + [PROMPTS] * 130 + [last] * 100, (4, 4), turn_s)
    assert (found[100], found[230], found[-1]) == ((2, 6), (6, 2), ends)


def test_a_pool_gives_up_unneeded_replicas_at_once_and_needed_ones_later() -> None:
    found = shared([ANSWERS] * 100 + [PROMPTS] * 130, (4, 4))  # decode needs four, and prefill more
    assert (found[100], found[134], found[200], found[-1]) == ((2, 6), (4, 4), (4, 4), (6, 2))


def test_a_pool_gives_up_nothing_while_the_other_may_not_grow() -> None:
    found = shared([MORE_ANSWERS] * 40 + [PROMPTS] * 110 + [MORE_ANSWERS] * 150, (1, 1))
    assert (found[40], found[150]) == ((5, 3), (6, 2))  # a turn for decode, but not for prefill
    assert set(found[150:]) == {(6, 2)}
