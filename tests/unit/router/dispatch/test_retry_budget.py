"""Retries of refused requests are limited to a share of all requests."""

from baton.router.dispatch.retries import MAX_SAVED_RETRIES, RETRY_SHARE, RetryBudget


def num_taken(budget: RetryBudget, num_tries: int) -> int:
    return sum(budget.take() for _ in range(num_tries))


def test_saved_retries_are_spent_once() -> None:
    budget = RetryBudget()
    assert num_taken(budget, 1000) == MAX_SAVED_RETRIES
    assert not budget.take()


def test_under_lasting_overload_a_share_is_left() -> None:
    budget = RetryBudget()
    num_taken(budget, 1000)
    taken = 0
    for _ in range(1000):
        budget.note_request()
        taken += num_taken(budget, 3)
    assert abs(taken - 1000 * RETRY_SHARE) <= 1


def test_quiet_times_save_retries_up_to_the_limit() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.note_request()
    assert num_taken(budget, 1000) == MAX_SAVED_RETRIES
