"""Batches of a tenant whose bytes or files are used up."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from baton.router.batches import run as run_module
from baton.router.errors import FieldError
from baton.router.files import quota
from baton.router.http.exchange import Exchange
from tests.unit.router.batches.batch_rig import LIMITS, BatchRig, batch_rig

NO_ROOM = "storage_limit_exceeded"


def used_bytes(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("content"))


async def respond_at_length(exchange: Exchange) -> None:
    await asyncio.sleep(0.002)
    await exchange.respond(200, b'"' + b"x" * 5000 + b'"')


def fill(rig: BatchRig, num_left: int) -> None:
    """Leave the tenant this many bytes."""
    num_bytes = rig.files.quota.add(rig.files.tenant(rig.tenant), 0) - num_left
    incoming = rig.files.begin(rig.tenant, num_bytes)
    incoming.write(b"x" * num_bytes)
    incoming.commit("rest", "batch")


async def test_results_beyond_the_tenants_bytes_end_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "WATCH_S", 0.01)
    limits = replace(LIMITS, tenant_bytes=300_000)
    async with batch_rig(tmp_path, respond_at_length, limits) as rig:
        record = await rig.run(rig.create(1000))
        assert (record.status, [error.code for error in record.errors]) == ("failed", [NO_ROOM])
        assert (record.error_file_id, record.num_lines) == (None, 1000)  # there is no room for errors either
        assert 20 <= len(rig.results(record.output_file_id)) == record.num_completed < 100
        assert rig.files.quota.add(rig.files.tenant(rig.tenant), 0) == 300_000 - used_bytes(tmp_path) <= 0
        with pytest.raises(FieldError, match="no room"):
            rig.batches.create(rig.tenant, record)


async def test_without_room_no_request_runs_and_the_next_batch_is_refused(tmp_path: Path) -> None:
    async with batch_rig(tmp_path, limits=replace(LIMITS, file_bytes=2 << 20, tenant_bytes=2 << 20)) as rig:
        running, cancelled = rig.create(1000), rig.create(3000)
        rig.batches.cancel(rig.tenant, cancelled)
        fill(rig, 1000)
        record = await rig.run(cancelled)
        assert (record.status, [error.code for error in record.errors]) == ("cancelled", [NO_ROOM])
        assert len(rig.results(record.error_file_id)) == run_module.NUM_WRITTEN
        before = used_bytes(tmp_path)
        record = await rig.run(running)
        assert (record.status, [error.code for error in record.errors]) == ("failed", [NO_ROOM])
        assert (record.output_file_id, record.error_file_id) == (None, None)
        assert used_bytes(tmp_path) == before


async def test_results_count_for_the_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "MAX_FILES", 5)
    async with batch_rig(tmp_path) as rig:
        for _ in range(2):
            await rig.run(rig.create())
        with pytest.raises(FieldError, match="there are 5 files"):
            rig.create()
