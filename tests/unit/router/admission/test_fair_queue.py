"""The order of the fair queue."""

import random
from collections import Counter

import pytest

from baton.router.admission.fair_queue import FairQueue, Ticket


def ticket(key: str = "", num_completions: int = 1, priority: int = 0) -> Ticket:
    return Ticket(num_completions, priority, key)


def filled(*tickets: Ticket) -> FairQueue[Ticket]:
    queue = FairQueue[Ticket]()
    for each in tickets:
        queue.add(each)
    return queue


def served(queue: FairQueue[Ticket], count: int | None = None) -> list[Ticket]:
    """Take the next `count` tickets (None: all) and return them in order."""
    order: list[Ticket] = []
    while queue.num_completions and (count is None or len(order) < count):
        order.append(queue.head())
        queue.take(order[-1])
    return order


def test_one_key_is_served_by_arrival() -> None:
    tickets = [ticket(num_completions=size) for size in (3, 1, 128, 2)]
    assert served(filled(*tickets)) == tickets


def test_the_urgent_come_first() -> None:
    late, middle, early = ticket("a", priority=5), ticket("b"), ticket("a", priority=-1)
    assert served(filled(late, middle, early)) == [early, middle, late]


def test_keys_take_turns_however_many_requests_they_have() -> None:
    queue = filled(*(ticket("flood") for _ in range(100)), *(ticket("few") for _ in range(3)))
    assert [each.fairness_key for each in served(queue, 6)] == ["flood", "few"] * 3
    assert [each.fairness_key for each in served(queue)] == ["flood"] * 97


def test_keys_share_completions_and_not_requests() -> None:
    queue = filled(*(ticket("large", 10) for _ in range(30)), *(ticket("small", 1) for _ in range(300)))
    shares: Counter[str] = Counter()
    for each in served(queue, 110):
        shares[each.fairness_key] += each.num_completions
        assert abs(shares["large"] - shares["small"]) <= 10
    assert shares == {"large": 100, "small": 100}


def test_a_later_key_gets_no_more_than_its_share() -> None:
    queue = filled(*(ticket("early") for _ in range(20)))
    served(queue, 10)
    for _ in range(20):
        queue.add(ticket("late"))
    assert Counter(each.fairness_key for each in served(queue, 10)) == {"early": 5, "late": 5}


def test_the_head_stays_the_head_until_it_leaves() -> None:
    head = ticket("a", 5)
    queue = filled(head, ticket("b", 5))
    for _ in range(3):
        assert queue.head() is head
        queue.add(ticket("c"))
    urgent = ticket("d", priority=-1)
    queue.add(urgent)
    assert queue.head() is urgent
    queue.remove(urgent)
    assert queue.head() is head


def test_many_keys_with_large_requests_need_few_steps() -> None:
    queue = filled(*(ticket(str(key), 10**9) for key in range(50)))
    assert [each.fairness_key for each in served(queue)] == [str(key) for key in range(50)]


def test_requests_ahead_are_counted() -> None:
    queue = filled(
        ticket("a", 3), ticket("a", 4), ticket("b", 10), ticket("c", 1), ticket("a", 50, 1), ticket("b", 7, -1)
    )
    assert queue.num_ahead(ticket("a", 1)) == 7 + (3 + 4) + 8 + 1  # of b only as much as a is served meanwhile
    assert queue.num_ahead(ticket("d", 2)) == 7 + 2 + 2 + 1
    assert queue.num_ahead(ticket("d", 2, priority=-2)) == 0
    assert queue.num_ahead(ticket("d", 2, priority=2)) == queue.num_completions == 75


def test_a_flood_is_displaced_until_the_keys_are_equal() -> None:
    flood = [ticket("flood") for _ in range(4)]
    queue = filled(*flood)
    assert queue.displaced_by(ticket("flood"), 1) == []
    assert queue.displaced_by(ticket("few", 2), 2) == [flood[3], flood[2]]
    for each in queue.displaced_by(ticket("few", 2), 2):
        queue.remove(each)
    queue.add(ticket("few", 2))
    assert queue.displaced_by(ticket("few"), 1) == []
    assert queue.displaced_by(ticket("other", 2), 2) == []
    assert queue.displaced_by(ticket("other"), 1) == [flood[1]]


def test_the_least_urgent_are_displaced() -> None:
    idle = [ticket("a", 2, 9), ticket("a", 2, 9)]
    queue = filled(*(ticket("a") for _ in range(9)), *idle)
    assert queue.displaced_by(ticket("a"), 1) == [idle[1]]
    assert queue.displaced_by(ticket("a", 4), 4) == [idle[1], idle[0]]
    assert queue.displaced_by(ticket("a", 5), 5) == []  # room that could not suffice is not made
    assert queue.displaced_by(ticket("a", 1, 10), 1) == []


def test_room_is_made_in_several_lines() -> None:
    idle = [ticket(key, 1, 9) for key in "abc"]
    flood = [ticket("flood") for _ in range(6)]
    queue = filled(*idle, *flood, ticket("few"))
    assert set(queue.displaced_by(ticket("urgent", 2, -1), 2)) < set(idle)
    assert set(queue.displaced_by(ticket("new", 2), 2)) < set(idle)
    leaving = queue.displaced_by(ticket("new", 4), 4)
    assert set(leaving[:3]) == set(idle)
    assert leaving[3:] == [flood[5]]
    assert queue.displaced_by(ticket("new", 6), 6) == []  # the flood would be left with less than is asked for


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_lose_no_request_and_keep_exact_counts(seed: int) -> None:
    rng = random.Random(seed)
    queue = FairQueue[Ticket]()
    waiting: list[Ticket] = []
    for _ in range(2000):
        action = rng.random()
        if action < 0.5 or not waiting:
            waiting.append(ticket(rng.choice("abcdef"), rng.choice((1, 1, 2, 30)), rng.choice((-1, 0, 0, 3))))
            queue.add(waiting[-1])
        elif action < 0.8:
            head = queue.head()
            assert head.priority == min(each.priority for each in waiting)
            mine = (head.priority, head.fairness_key)
            same_key = [each for each in waiting if (each.priority, each.fairness_key) == mine]
            assert head is same_key[0]
            waiting.remove(head)
            queue.take(head)
        else:
            gone = rng.choice(waiting)
            waiting.remove(gone)
            queue.remove(gone)
        assert queue.num_completions == sum(each.num_completions for each in waiting)
    assert sorted(map(id, queue.tickets())) == sorted(map(id, waiting))
