"""A drafter whose drafts do not pay rests, ever longer."""

import pytest

from baton.engine.speculation.rest import FIRST_REST, IDLE_STEPS, LAST_REST, PAYING_STEPS, Rest


def resting(num_sequences: int = 8) -> Rest:
    """A rest that has just begun."""
    rest = Rest()
    for _ in range(IDLE_STEPS):
        assert not rest.take(num_sequences)
        rest.note(num_sequences, pays=False)
    return rest


def length(rest: Rest, num_sequences: int = 8) -> int:
    """Take all of a rest."""
    while rest.take(num_sequences):
        pass
    return rest.end()


def test_rests_become_longer_until_drafts_pay() -> None:
    rest = resting()
    lengths = [length(rest)]
    while lengths[-1] < LAST_REST:
        for _ in range(IDLE_STEPS):
            rest.note(8, pays=False)
        lengths.append(length(rest))
    assert lengths == [FIRST_REST << place for place in range(len(lengths))]
    for _ in range(PAYING_STEPS):
        rest.note(8, pays=True)
    for _ in range(IDLE_STEPS):
        assert not rest.take(8)
        rest.note(8, pays=False)
    assert length(rest) == FIRST_REST
    assert rest.end() == 0


@pytest.mark.parametrize("place", range(IDLE_STEPS))
def test_one_paying_plan_begins_the_count_anew(place: int) -> None:
    rest = Rest()
    for number in range(IDLE_STEPS + place):
        rest.note(8, pays=number == place)
        assert not rest.take(8)
    rest.note(8, pays=False)
    assert rest.take(8)


def test_a_smaller_batch_ends_a_rest() -> None:
    rest = resting(8)
    assert rest.take(5)
    assert rest.take(0)  # a step of prompts alone
    assert rest.take(16)
    assert not rest.take(4)
    assert not rest.take(8)
    assert rest.end() == 3
