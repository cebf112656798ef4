"""Calls of the folder's threads end before their cancelled callers do, if those ask for it."""

import asyncio
import threading

import pytest

from baton.router.files.disk import Disk, FolderLost


async def test_a_cancelled_caller_waits_and_its_result_is_discarded() -> None:
    disk, may_go_on, discarded = Disk(), threading.Event(), list[bool]()
    calling = asyncio.create_task(disk.run_to_end(lambda: may_go_on.wait(20), discarded.append))
    for _ in range(3):
        await asyncio.sleep(0.01)
        calling.cancel()
    await asyncio.sleep(0.01)
    assert not calling.done()
    may_go_on.set()
    await asyncio.wait([calling])
    assert calling.cancelled()
    assert discarded == [True]
    disk.close()


async def test_results_and_errors_reach_the_caller() -> None:
    def fail() -> None:
        raise OSError("lost")

    disk = Disk()
    assert await disk.run_to_end(lambda: 5) == 5
    with pytest.raises(FolderLost):
        await disk.run_to_end(fail)
    disk.close()
