"""Calls of the folder's threads: cancelled callers wait for their end if they ask for it; a held lock stops few."""

import asyncio
import threading
from pathlib import Path

import pytest

from baton.router.files import durable
from baton.router.files.disk import MAX_WAITING, NUM_THREADS, Disk, FolderLost
from baton.router.files.durable import locked
from baton.router.files.folder import FileFolder
from baton.router.files.quota import FolderLimits
from baton.router.files.record import TenantId


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


async def test_a_close_does_not_wait_for_a_hung_call() -> None:
    disk, may_go_on, ended = Disk(), threading.Event(), list[bool]()
    calling = asyncio.create_task(disk.run(lambda: ended.append(may_go_on.wait(20))))
    await asyncio.sleep(0.01)
    calling.cancel()
    await asyncio.wait([calling])
    disk.close()
    assert not ended
    may_go_on.set()


async def test_results_and_errors_reach_the_caller() -> None:
    def fail() -> None:
        raise OSError("lost")

    disk = Disk()
    assert await disk.run_to_end(lambda: 5) == 5
    with pytest.raises(FolderLost):
        await disk.run_to_end(fail)
    disk.close()


@pytest.mark.slow
async def test_calls_that_wait_for_the_quota_leave_threads_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "LOCK_S", 2.0)
    folder, disk = FileFolder(tmp_path, FolderLimits(file_bytes=9, tenant_bytes=99, max_bytes=99)), Disk()
    with locked(tmp_path / "quota.lock"):  # by a process that has stopped
        begin = lambda: folder.begin(TenantId("a"), 1)  # noqa: E731
        uploads = [asyncio.create_task(disk.run(begin, uses_quota=True)) for _ in range(MAX_WAITING)]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(disk.run(lambda: folder.of_tenant(TenantId("a"))), 1.5) == []
        with pytest.raises(FolderLost, match="too many requests"):
            await disk.run(begin, uses_quota=True)
        done, _ = await asyncio.wait(uploads, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert {type(each.exception()) for each in done} == {FolderLost}
    results = await asyncio.gather(*uploads, return_exceptions=True)
    assert len([each for each in results if isinstance(each, FolderLost)]) <= 2 * NUM_THREADS
    for incoming in results:
        if not isinstance(incoming, BaseException):
            incoming.abort()
    disk.close()
