"""Clients take turns, and a turn is never lost."""

import asyncio
import random

from baton.router.admission.turns import Turns


async def hold(turns: Turns, client: str, order: list[str], num_steps: int = 1) -> None:
    async with turns.turn(client):
        order.append(client)
        for _ in range(num_steps):
            await asyncio.sleep(0)
            assert order[-1] == client


async def test_a_client_with_many_requests_delays_another_by_one() -> None:
    turns, order = Turns(), list[str]()
    async with asyncio.TaskGroup() as group:
        for client in "aaaabbc":
            group.create_task(hold(turns, client, order))
    assert "".join(order) == "aabcaba"


async def test_two_threads_have_two_turns_at_once() -> None:
    turns = Turns(2)
    async with turns.turn("a"), turns.turn("a"):
        third = asyncio.create_task(hold(turns, "b", []))
        await asyncio.sleep(0)
        assert not third.done()
    await third


async def test_cancelled_waiters_do_not_take_turns() -> None:
    rng = random.Random(3)
    for _ in range(200):
        turns, order = Turns(), list[str]()
        tasks = [asyncio.create_task(hold(turns, rng.choice("abc"), order, rng.randrange(3))) for _ in range(8)]
        for task in rng.sample(tasks, 4):
            await asyncio.sleep(0)
            task.cancel()
        async with asyncio.timeout(10):
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert results.count(None) >= 4
            assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
            await hold(turns, "d", order)
