"""A result that concurrent requests share."""

import asyncio
from itertools import pairwise

from baton.router.shared_result import SharedResult


class State:
    """Source of results that counts them."""

    def __init__(self) -> None:
        self.value = 0
        self.num_reports = self.num_running = 0

    async def report(self) -> int:
        self.num_reports += 1
        self.num_running += 1
        assert self.num_running == 1
        value = self.value
        await asyncio.sleep(0)
        self.num_running -= 1
        return value


async def test_concurrent_requests_share_one_computation() -> None:
    state = State()
    shared = SharedResult(state.report)
    assert await asyncio.gather(*(shared.get() for _ in range(100))) == [0] * 100
    assert state.num_reports == 1


async def test_a_result_is_computed_after_the_request() -> None:
    state = State()
    shared = SharedResult(state.report, interval_s=0.001)
    for value in range(5):
        state.value = value
        assert await shared.get() == value


async def test_computations_have_an_interval_between_them() -> None:
    loop, interval_s = asyncio.get_running_loop(), 0.05
    begun_s: list[float] = []

    async def compute() -> None:
        begun_s.append(loop.time())

    shared = SharedResult(compute, interval_s)
    for _ in range(3):
        await shared.get()
    assert min(later - earlier for earlier, later in pairwise(begun_s)) > 0.9 * interval_s


async def test_a_request_that_ends_leaves_the_computation_to_the_others() -> None:
    state = State()
    shared = SharedResult(state.report)
    first, second = (asyncio.create_task(shared.get()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 0


async def test_an_error_reaches_waiting_requests_and_no_later_ones() -> None:
    errors = [ValueError("no state")]

    async def compute() -> str:
        if errors:
            raise errors.pop()
        return "state"

    shared = SharedResult(compute, interval_s=0.001)
    failed = await asyncio.gather(shared.get(), shared.get(), return_exceptions=True)
    assert [type(each) for each in failed] == [ValueError, ValueError]
    assert await shared.get() == "state"
