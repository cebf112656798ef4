"""A batch whose owner loses its lock, or its disk, while it runs."""

import asyncio
import errno
import fcntl
import logging
from pathlib import Path
from typing import Any

import pytest

from baton.router.batches import folder as folder_module
from baton.router.batches import runner as runner_module
from baton.router.batches.journal import CONTENT, JournalPart
from baton.router.batches.run import BatchRun
from baton.router.files.disk import FolderLost
from baton.router.http.exchange import Exchange
from tests.unit.router.batches.batch_rig import DEADLINE_S, batch_rig
from tests.unit.router.rigs.running_router import until

NUM_LINES = 10


class FullDisk:
    """A disk that is full after half of a write, while `is_full`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self._write, self._write_file = JournalPart._write, folder_module.write_file
        monkeypatch.setattr(JournalPart, "_write", lambda part, data: self._half(part, data))
        monkeypatch.setattr(folder_module, "write_file", self._none)

    def _half(self, part: JournalPart, data: bytes) -> None:
        self._write(part, data[: len(data) // 2] if self.is_full else data)
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space")

    def _none(self, path: Path, content: bytes, **options: Any) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space")
        self._write_file(path, content, **options)


async def test_a_full_disk_interrupts_a_batch_for_as_long_as_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def respond_later(exchange: Exchange) -> None:
        await asyncio.sleep(0.02)
        await exchange.respond(200, b"{}")

    monkeypatch.setattr(runner_module, "RETRY_S", 0.01)
    monkeypatch.setattr(runner_module, "CLAIM_S", 0.01)
    caplog.set_level(logging.WARNING)
    disk = FullDisk(monkeypatch)
    async with batch_rig(tmp_path, respond_later) as rig:
        batch_id = rig.create(100)
        running = asyncio.create_task(rig.runner.run())
        await until(lambda: rig.batches.find(rig.tenant, batch_id).record.status == "in_progress")
        disk.is_full = True
        await until(lambda: caplog.text.count("is interrupted") > runner_module.MAX_FAILURES + 1)
        disk.is_full = False
        await until(lambda: rig.batches.find(rig.tenant, batch_id).record.status == "completed")
        record = rig.batches.find(rig.tenant, batch_id).record
        assert (record.num_completed, record.errors, record.error_file_id) == (100, [], None)
        assert len(rig.results(record.output_file_id)) == 100
        running.cancel()
        await asyncio.wait([running])


async def test_a_write_that_fails_while_the_batch_is_cancelled_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, num_begun = FullDisk(monkeypatch), 0

    async def respond_to_some(exchange: Exchange) -> None:
        nonlocal num_begun
        num_begun += 1
        if num_begun > 3:
            rig.batches.cancel(rig.tenant, batch_id)
            await asyncio.sleep(DEADLINE_S)
        disk.is_full = num_begun == 3
        await exchange.respond(200, b"{}")

    async with batch_rig(tmp_path, respond_to_some) as rig:
        batch_id = rig.create(NUM_LINES)
        with pytest.raises(FolderLost):
            await rig.run(batch_id)
        assert rig.batches.find(rig.tenant, batch_id).record.outcome is None
        disk.is_full = False
        record = await rig.run(batch_id)
        assert record.status == "cancelled"
        assert record.num_completed + record.num_failed == NUM_LINES
        output = rig.results(record.output_file_id) if record.output_file_id else {}
        assert len(output) + len(rig.results(record.error_file_id)) == NUM_LINES


async def test_a_caller_that_was_cancelled_in_a_failed_write_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch)

    async def cancelled_in_a_write(run: BatchRun, file: Any, journal: Any) -> Any:
        disk.is_full = True
        appending = asyncio.create_task(journal.append(rig.result(0)))
        await asyncio.sleep(0)
        appending.cancel()
        await asyncio.wait([appending])
        await asyncio.sleep(0.1)
        disk.is_full = False
        return "cancelled"

    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create()
        with monkeypatch.context() as patch:
            patch.setattr(BatchRun, "_run_lines", cancelled_in_a_write)
            with pytest.raises(FolderLost):
                await rig.run(batch_id)
        assert (await rig.run(batch_id)).num_completed == 3


async def test_an_owner_that_lost_its_lock_writes_nothing_more(tmp_path: Path) -> None:
    may_respond = asyncio.Event()

    async def respond_later(exchange: Exchange) -> None:
        await may_respond.wait()
        await exchange.respond(200, b"{}")

    async with batch_rig(tmp_path, respond_later) as rig:
        batch_id = rig.create(NUM_LINES)
        first = rig.own(batch_id)
        runs = [asyncio.create_task(BatchRun(first, rig.parts).run())]
        await until(lambda: rig.batches.find(rig.tenant, batch_id).record.status == "in_progress")
        fcntl.flock(first._lock, fcntl.LOCK_UN)  # by a file server that lost the machine
        second = rig.own(batch_id)
        runs.append(asyncio.create_task(BatchRun(second, rig.parts).run()))
        await asyncio.sleep(0.1)
        may_respond.set()
        outcomes = await asyncio.gather(*runs, return_exceptions=True)
        assert [type(each) for each in outcomes] == [FolderLost, type(None)]
        with pytest.raises(OSError, match="No such file"):
            first.check_owner()
        record = rig.batches.find(rig.tenant, batch_id).record
        assert (record.status, len(rig.results(record.output_file_id))) == ("completed", NUM_LINES)
        assert len(rig.files.of_tenant(rig.tenant)) == 2
        first.release()
        second.release()


async def test_results_that_another_owner_wrote_too_are_published_once(tmp_path: Path) -> None:
    async def respond_after_the_other(exchange: Exchange) -> None:
        if content.exists():
            lines = content.read_bytes()
            with content.open("ab") as file:
                file.write(lines)
        await exchange.respond(200, b"{}")

    async with batch_rig(tmp_path, respond_after_the_other) as rig:
        batch_id = rig.create(NUM_LINES)
        owned = rig.own(batch_id)
        content = owned.folder / "output" / CONTENT
        await rig.tear(owned, range(4))
        owned.release()
        with pytest.raises(FolderLost, match="another router has written"):
            await rig.run(batch_id)
        record = await rig.run(batch_id)
        assert (record.status, record.num_completed) == ("completed", NUM_LINES)
        assert len(rig.results(record.output_file_id)) == NUM_LINES
        assert rig.files.quota.add(rig.files.tenant(rig.tenant), 0) == (1 << 20) - sum(
            path.stat().st_size for path in tmp_path.rglob(CONTENT)
        )


async def test_few_batches_of_a_tenant_are_ended_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_run = 0

    async def count(exchange: Exchange) -> None:
        nonlocal num_run
        num_run += 1
        await exchange.respond(200, b"{}")

    async with batch_rig(tmp_path, count) as rig:
        batch_ids = [rig.create() for _ in range(12)]
        for batch_id in batch_ids:
            rig.batches.cancel(rig.tenant, batch_id)
        running = asyncio.create_task(rig.runner.run())
        await until(lambda: bool(rig.runner._running))
        most = 0
        monkeypatch.setattr(runner_module, "CLAIM_S", 0.01)
        while any(rig.batches.find(rig.tenant, each).record.outcome is None for each in batch_ids):
            most = max(most, len(rig.runner._running))
            await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait([running])
        assert 1 <= most <= 2 * runner_module.MAX_TENANT_RUNNING
        assert num_run == 0


async def test_a_batch_that_cannot_be_read_leaves_the_others_running(tmp_path: Path) -> None:
    async with batch_rig(tmp_path) as rig:
        broken, whole = rig.create(), rig.create()
        [lock] = tmp_path.rglob(f"{broken}/lock")
        lock.unlink()
        lock.mkdir()
        await rig.runner._claim()
        assert rig.runner._running.keys() == {whole}
        await until(lambda: not rig.runner._running)
        assert rig.batches.find(rig.tenant, whole).record.status == "completed"
