"""Running sums of the commands that a router has sent to a worker."""

import random

from baton.router.workers.additions import Addition, Additions


def test_the_sums_are_those_of_the_commands_that_are_there() -> None:
    source, additions, there = random.Random(1), Additions(), dict[int, Addition]()
    for _ in range(2000):
        number = source.randrange(20)
        match source.randrange(3):
            case 0:
                kind = source.randrange(3)
                adapter = source.choice(("", "one", "two"))
                added = Addition(source.randrange(99), source.randrange(9), kind == 1, kind == 2, adapter)
                additions.put(number, added)
                there[number] = added
            case 1:
                assert additions.pop(number) == there.pop(number, None)
            case _:
                if (known := additions.get(number)) is not None:
                    there[number] = known.computed()
                    additions.put(number, known.computed())
        assert len(additions) == len(there)
        assert additions.num_tokens == sum(each.num_tokens for each in there.values())
        assert additions.num_blocks == sum(each.num_blocks for each in there.values())
        assert additions.num_prefills == sum(each.is_prefill for each in there.values())
        assert additions.num_received == sum(each.is_received for each in there.values())
        assert set(additions.adapters) == {each.adapter for each in there.values() if each.adapter}
    additions.clear()
    assert (len(additions), additions.num_tokens, additions.num_blocks, additions.num_prefills) == (0, 0, 0, 0)
    assert not additions.num_received
    assert not additions.adapters
