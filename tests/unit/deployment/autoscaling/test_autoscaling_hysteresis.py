"""Sizes that follow a load, but not its noise."""

from dataclasses import replace

from baton.deployment.autoscaling.band import Band
from baton.deployment.autoscaling.hysteresis import SizeState
from tests.unit.deployment.autoscaling_snapshots import SETTINGS

UP_S, DOWN_S, TURN_S = SETTINGS.upscale_delay_s, SETTINGS.downscale_delay_s, SETTINGS.turn_s


def band(least: int, most: int) -> Band:
    return Band(least, most, DOWN_S, UP_S)


def look(state: SizeState, now_s: float, least: int, most: int, sure: int | None = None) -> SizeState:
    """One look, after which all that is wanted is given."""
    after = state.after(band(least, most), band(least if sure is None else sure, most), now_s, SETTINGS)
    return after.given(state.wanted, after.wanted, now_s)


def look_from(state: SizeState, from_s: float, until_s: float, least: int, most: int) -> SizeState:
    for second in range(int(from_s), int(until_s) + 1):
        state = look(state, float(second), least, most)
    return state


def test_a_pool_grows_after_its_delay_to_what_every_look_asked_for() -> None:
    state = SizeState(2)
    for second, least in enumerate((5, 7, 4, 9, 6)):
        state = look(state, float(second), least, 9)
        assert state.wanted == 2
    assert look(state, UP_S, 8, 9).wanted == 4


def test_one_look_that_asks_for_no_more_begins_the_delay_anew() -> None:
    state = look_from(SizeState(2), 0, 4, 5, 9)
    state = look(state, 4.5, 2, 9)
    state = look_from(state, 5, 9, 5, 9)
    assert state.wanted == 2
    assert look(state, 10.0, 5, 9).wanted == 5


def test_a_pool_shrinks_after_its_delay_to_the_most_that_any_look_asked_for() -> None:
    state = look_from(SizeState(6), 0, 100, 1, 2)
    state = look(state, 101.0, 1, 4)
    state = look_from(state, 102, DOWN_S - 1, 1, 3)
    assert state.wanted == 6
    assert look(state, DOWN_S, 1, 2).wanted == 4


def test_one_look_that_needs_the_size_keeps_it() -> None:
    state = look_from(SizeState(3), 0, DOWN_S - 1, 1, 2)
    state = look(state, DOWN_S - 0.5, 1, 3)
    state = look_from(state, DOWN_S, 2 * DOWN_S - 1, 1, 2)
    assert state.wanted == 3
    assert look(state, 2 * DOWN_S, 1, 2).wanted == 2


def test_between_what_it_needs_and_what_it_keeps_a_pool_stays() -> None:
    assert look_from(SizeState(3), 0, 4 * DOWN_S, 2, 3).wanted == 3


def grown_and_shrunk() -> SizeState:
    """From 3 to 2 after 300 s, having grown before: a turn."""
    state = look_from(replace(SizeState(3), has_grown=True), 0, DOWN_S, 1, 2)
    assert state.wanted == 2
    assert state.turned_s == DOWN_S
    return state


def test_a_pool_that_has_just_turned_grows_only_if_that_is_no_chance() -> None:
    state = grown_and_shrunk()
    for second in range(100):
        state = look(state, DOWN_S + 1 + second, 3, 4, sure=2)
    assert state.wanted == 2
    for second in range(100, 107):
        state = look(state, DOWN_S + 1 + second, 4, 5, sure=3)
    assert state.wanted == 3  # what is sure, no more


def test_later_it_turns_again() -> None:
    state = grown_and_shrunk()
    for second in range(int(DOWN_S) + 1, int(DOWN_S + TURN_S + UP_S) + 1):
        state = look(state, float(second), 3, 4, sure=2)
    assert state.wanted == 3
    assert state.turned_s is not None
    assert state.turned_s >= DOWN_S + TURN_S


def test_a_pool_that_has_just_turned_to_growing_waits_to_shrink() -> None:
    state = replace(SizeState(3), has_grown=True, turned_s=0.0)
    state = look_from(state, 0, TURN_S - 1, 1, 2)
    assert state.wanted == 3
    assert look(state, TURN_S, 1, 2).wanted == 2  # every look in between counted


def test_more_of_the_same_direction_is_no_turn() -> None:
    state = look_from(SizeState(2, has_grown=True, turned_s=0.0), 1, 6, 3, 4)
    assert (state.wanted, state.turned_s) == (3, 0.0)
    state = look_from(state, 7, 12, 5, 6)
    assert (state.wanted, state.turned_s) == (5, 0.0)


def test_the_other_pools_need_is_no_swing() -> None:
    state = replace(SizeState(5), has_grown=True, turned_s=0.0)
    pressed = Band(2, 3, SETTINGS.shift_delay_s, UP_S, is_pressed=True)
    for second in range(int(SETTINGS.shift_delay_s)):
        state = state.after(pressed, pressed, float(second), SETTINGS)
        assert state.wanted == 5
    assert state.after(pressed, band(2, 3), SETTINGS.shift_delay_s, SETTINGS).wanted == 5  # not sure
    assert state.after(pressed, pressed, SETTINGS.shift_delay_s, SETTINGS).wanted == 3


def test_only_what_was_given_turns_a_pool() -> None:
    state = replace(SizeState(3), has_grown=False, turned_s=0.0)
    wanting = state.after(band(4, 5), band(4, 5), 1.0, SETTINGS).after(band(4, 5), band(4, 5), 1 + UP_S, SETTINGS)
    assert wanting.wanted == 4
    assert (wanting.has_grown, wanting.turned_s) == (False, 0.0)
    assert wanting.given(3, 3, 7.0) == wanting
    given = wanting.given(3, 4, 50.0)
    assert (given.has_grown, given.turned_s) == (True, 50.0)


def test_a_pool_may_go_on_in_its_direction_and_back_only_later() -> None:
    state = replace(SizeState(3), has_grown=False, turned_s=0.0)
    assert state.may_become(2, 3, 1.0, TURN_S)
    assert state.may_become(3, 3, 1.0, TURN_S)
    assert not state.may_become(4, 3, TURN_S - 1, TURN_S)
    assert state.may_become(4, 3, TURN_S, TURN_S)
    assert SizeState(3).may_become(4, 3, 1.0, TURN_S)


def test_what_is_taken_back_is_no_change_of_direction() -> None:
    state = SizeState(5, has_grown=True, turned_s=1.0)
    assert state.lowered(3) == replace(state, wanted=3)
    assert state.lowered(7) == state
    assert state.raised(7) == replace(state, wanted=7)
    assert state.raised(3) == state
