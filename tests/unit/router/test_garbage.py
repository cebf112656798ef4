"""When the router's process collects garbage."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from baton.router.app import GarbageCollector


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.parametrize("is_idle", [True, False])
async def test_garbage_goes_while_idle_and_at_last_while_busy(is_idle: bool) -> None:
    lasting = Cycle()
    collector = GarbageCollector(interval_s=0.01, busy_interval_s=0.05)
    assert gc.get_threshold()[0] > 1000
    running = asyncio.create_task(collector.run(lambda: is_idle))
    try:
        await asyncio.sleep(0)
        assert gc.get_freeze_count() > 1000
        garbage = weakref.ref(Cycle())
        async with asyncio.timeout(10):
            while garbage() is not None:
                await asyncio.sleep(0.005)
    finally:
        running.cancel()
    assert lasting.itself is lasting
