"""Hysteresis: sizes follow the load, but not its noise."""

from dataclasses import replace

from baton.deployment.autoscaling.band import Band
from baton.deployment.autoscaling.hysteresis import SizeState
from tests.unit.deployment.autoscaling_snapshots import SETTINGS

UP_S, DOWN_S, TURN_S = SETTINGS.upscale_delay_s, SETTINGS.downscale_delay_s, SETTINGS.turn_s


def band(least: int, most: int) -> Band:
    return Band(least, most, DOWN_S, UP_S)


def plan(state: SizeState, now_s: float, least: int, most: int, sure: int | None = None) -> SizeState:
    """Plan once, and grant all that the plan wants."""
    after = state.after(band(least, most), band(least if sure is None else sure, most), now_s, SETTINGS)
    return after.given(state.wanted, after.wanted, now_s)


def plan_for(state: SizeState, from_s: float, until_s: float, least: int, most: int) -> SizeState:
    for second in range(int(from_s), int(until_s) + 1):
        state = plan(state, float(second), least, most)
    return state


def test_a_pool_grows_after_its_delay_to_the_smallest_size_wanted() -> None:
    state = SizeState(2)
    for second, least in enumerate((5, 7, 4, 9, 6)):
        state = plan(state, float(second), least, 9)
        assert state.wanted == 2
    assert plan(state, UP_S, 8, 9).wanted == 4


def test_one_run_without_growth_restarts_the_growth_delay() -> None:
    state = plan_for(SizeState(2), 0, 4, 5, 9)
    state = plan(state, 4.5, 2, 9)
    state = plan_for(state, 5, 9, 5, 9)
    assert state.wanted == 2
    assert plan(state, 10.0, 5, 9).wanted == 5


def test_a_pool_shrinks_after_its_delay_to_the_largest_size_wanted() -> None:
    state = plan_for(SizeState(6), 0, 100, 1, 2)
    state = plan(state, 101.0, 1, 4)
    state = plan_for(state, 102, DOWN_S - 1, 1, 3)
    assert state.wanted == 6
    assert plan(state, DOWN_S, 1, 2).wanted == 4


def test_one_run_that_needs_the_size_restarts_the_shrink_delay() -> None:
    state = plan_for(SizeState(3), 0, DOWN_S - 1, 1, 2)
    state = plan(state, DOWN_S - 0.5, 1, 3)
    state = plan_for(state, DOWN_S, 2 * DOWN_S - 1, 1, 2)
    assert state.wanted == 3
    assert plan(state, 2 * DOWN_S, 1, 2).wanted == 2


def test_a_pool_stays_between_its_need_and_its_need_with_margin() -> None:
    assert plan_for(SizeState(3), 0, 4 * DOWN_S, 2, 3).wanted == 3


def grown_and_shrunk() -> SizeState:
    """Grow, then shrink from 3 to 2 after 300 s: a turn."""
    state = plan_for(replace(SizeState(3), has_grown=True), 0, DOWN_S, 1, 2)
    assert state.wanted == 2
    assert state.turned_s == DOWN_S
    return state


def test_a_pool_that_has_just_turned_grows_only_if_the_load_is_not_chance() -> None:
    state = grown_and_shrunk()
    for second in range(100):
        state = plan(state, DOWN_S + 1 + second, 3, 4, sure=2)
    assert state.wanted == 2
    for second in range(100, 107):
        state = plan(state, DOWN_S + 1 + second, 4, 5, sure=3)
    assert state.wanted == 3  # only the certain part


def test_a_pool_turns_again_after_turn_s() -> None:
    state = grown_and_shrunk()
    for second in range(int(DOWN_S) + 1, int(DOWN_S + TURN_S + UP_S) + 1):
        state = plan(state, float(second), 3, 4, sure=2)
    assert state.wanted == 3
    assert state.turned_s is not None
    assert state.turned_s >= DOWN_S + TURN_S


def test_a_pool_that_has_just_started_growing_waits_to_shrink() -> None:
    state = replace(SizeState(3), has_grown=True, turned_s=0.0)
    state = plan_for(state, 0, TURN_S - 1, 1, 2)
    assert state.wanted == 3
    assert plan(state, TURN_S, 1, 2).wanted == 2  # every run in between counted


def test_a_change_in_the_same_direction_is_no_turn() -> None:
    state = plan_for(SizeState(2, has_grown=True, turned_s=0.0), 1, 6, 3, 4)
    assert (state.wanted, state.turned_s) == (3, 0.0)
    state = plan_for(state, 7, 12, 5, 6)
    assert (state.wanted, state.turned_s) == (5, 0.0)


def test_a_pool_shrinks_soon_after_a_turn_for_the_other_pools_certain_need() -> None:
    state = replace(SizeState(5), has_grown=True, turned_s=0.0)
    pressed = Band(2, 3, SETTINGS.shift_delay_s, UP_S, is_pressed=True)
    for second in range(int(SETTINGS.shift_delay_s)):
        state = state.after(pressed, pressed, float(second), SETTINGS)
        assert state.wanted == 5
    assert state.after(pressed, band(2, 3), SETTINGS.shift_delay_s, SETTINGS).wanted == 5  # not certain
    assert state.after(pressed, pressed, SETTINGS.shift_delay_s, SETTINGS).wanted == 3


def test_only_granted_changes_count_as_turns() -> None:
    state = replace(SizeState(3), has_grown=False, turned_s=0.0)
    wanting = state.after(band(4, 5), band(4, 5), 1.0, SETTINGS).after(band(4, 5), band(4, 5), 1 + UP_S, SETTINGS)
    assert wanting.wanted == 4
    assert (wanting.has_grown, wanting.turned_s) == (False, 0.0)
    assert wanting.given(3, 3, 7.0) == wanting
    given = wanting.given(3, 4, 50.0)
    assert (given.has_grown, given.turned_s) == (True, 50.0)


def test_a_pool_continues_in_its_direction_and_turns_only_later() -> None:
    state = replace(SizeState(3), has_grown=False, turned_s=0.0)
    assert state.may_become(2, 3, 1.0, TURN_S)
    assert state.may_become(3, 3, 1.0, TURN_S)
    assert not state.may_become(4, 3, TURN_S - 1, TURN_S)
    assert state.may_become(4, 3, TURN_S, TURN_S)
    assert SizeState(3).may_become(4, 3, 1.0, TURN_S)


def test_withdrawing_a_grant_is_no_turn() -> None:
    state = SizeState(5, has_grown=True, turned_s=1.0)
    assert state.lowered(3) == replace(state, wanted=3)
    assert state.lowered(7) == state
    assert state.raised(7) == replace(state, wanted=7)
    assert state.raised(3) == state
