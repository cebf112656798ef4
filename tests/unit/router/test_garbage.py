"""When the router's process collects garbage."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from baton.router.garbage import GarbageCollector


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_in_a_new_process() -> Iterator[None]:
    """Undo what the tests' process does at its start, and do it again."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*thresholds)
    gc.freeze()


@pytest.mark.parametrize("is_idle", [True, False])
async def test_garbage_is_collected_while_idle_and_at_last_while_busy(is_idle: bool) -> None:
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


def test_a_collection_that_would_take_long_is_left_to_young_objects(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    generations: list[int] = []
    monkeypatch.setattr("baton.router.garbage.gc.collect", lambda generation=2: generations.append(generation))
    num_blocks = [1_000, 100_000_000, 100_000_000, 1_000]
    monkeypatch.setattr("baton.router.garbage.sys.getallocatedblocks", lambda: num_blocks.pop(0))
    collector = GarbageCollector()
    assert gc.get_threshold()[2] > 1_000_000  # the interpreter itself does no full collection
    while num_blocks:
        collector.collect()
    assert generations == [1, 2, 1, 1, 1, 2]
    assert caplog.text.count("100000000 memory blocks are too many") == 1


def test_the_time_of_a_full_collection_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    generations: list[int] = []
    now_s = 0.0

    def collect(generation: int = 2) -> None:
        nonlocal now_s
        generations.append(generation)
        now_s += 1.0 if generation == 2 else 0.0

    monkeypatch.setattr("baton.router.garbage.gc.collect", collect)
    monkeypatch.setattr("baton.router.garbage.time.thread_time", lambda: now_s)
    monkeypatch.setattr("baton.router.garbage.sys.getallocatedblocks", lambda: 1_000_000)
    collector = GarbageCollector()
    collector.collect()
    collector.collect()
    assert generations == [1, 2, 1]
