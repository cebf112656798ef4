"""How long answers are."""

import pytest

from router.answer_length import FIRST_GUESS, AnswerLength


def test_it_is_guessed_first_and_learnt_from_the_last_answers() -> None:
    length = AnswerLength()
    assert length.mean == FIRST_GUESS
    for _ in range(1000):
        length.note(40)
    assert length.mean == pytest.approx(40, rel=1e-3)
    for number in range(1000):
        length.note(20 if number % 2 else 60)
    assert length.mean == pytest.approx(40, rel=0.02)


def test_answers_of_nothing_have_one_token() -> None:
    length = AnswerLength()
    for _ in range(2000):
        length.note(0)
    assert length.mean == 1.0
