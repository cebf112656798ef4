"""The run of a batch, also after its earlier owner ended at any point."""

import asyncio
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from baton.router.auth.api_key import digest_of
from baton.router.batches import folder as folder_module
from baton.router.batches import journal as journal_module
from baton.router.batches import run as run_module
from baton.router.batches import runner as runner_module
from baton.router.batches.folder import ENDED, Candidate, OwnedBatch
from baton.router.batches.journal import JournalPart, Progress
from baton.router.batches.line_run import LineRunner
from baton.router.batches.record import BatchError, Outcome
from baton.router.batches.run import BatchRun
from baton.router.files.disk import FolderLost
from baton.router.files.durable import move
from baton.router.http.exchange import Exchange
from tests.unit.router.batches.batch_rig import URL, Route, batch_rig, input_line, respond
from tests.unit.router.rigs.running_router import until

FAULT = BatchError("server_error", "The server failed.")


async def test_a_batch_that_stopped_before_its_last_move_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(source: Path, target: Path) -> None:
        if target.parent.name == ENDED:
            raise OSError("the router ends here")
        move(source, target)

    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create()
        with monkeypatch.context() as patch:
            patch.setattr(folder_module, "move", stop)
            with pytest.raises(FolderLost):
                await rig.run(batch_id)
        assert rig.batches.find(rig.tenant, batch_id).record.status == "completed"
        record = await rig.run(batch_id)  # by the next router
        assert (record.status, record.error_file_id) == ("completed", None)
        assert len(rig.results(record.output_file_id)) == 3
        assert rig.batches.candidates(frozenset()) == []


async def test_a_key_of_another_tenant_under_the_name_of_the_batchs_key_ends_the_batch(tmp_path: Path) -> None:
    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create()
        other = replace(rig.key, digest=digest_of(b"other"), cache_scope="other")
        rig.parts = replace(rig.parts, lines=LineRunner(rig.gate(other), {URL: Route(respond)}))
        record = await rig.run(batch_id)
        assert (record.status, record.output_file_id) == ("failed", None)
        assert [error.code for error in record.errors] == ["invalid_api_key"]
        assert len(rig.results(record.error_file_id)) == 3


async def test_a_batch_without_its_input_keeps_its_whole_lines(tmp_path: Path) -> None:
    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create()
        owned = rig.own(batch_id)
        await rig.tear(owned, range(2))
        owned.release()
        rig.files.delete(rig.tenant, owned.record.input_file_id)
        record = await rig.run(batch_id)
        assert [error.code for error in record.errors] == ["input_file_deleted"]
        assert (record.status, record.error_file_id, record.num_completed) == ("failed", None, 2)
        assert rig.results(record.output_file_id).keys() == {"line 0", "line 1"}


@pytest.mark.parametrize("breaks_rest", [True, False])
@pytest.mark.parametrize("reason", ["cancelled", "expired", "failed"])
async def test_a_batch_that_was_interrupted_at_its_end_keeps_its_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: Outcome, breaks_rest: bool
) -> None:
    """`breaks_rest`: in the errors of the requests that were not run, otherwise after them."""
    write, save = JournalPart._write, OwnedBatch.save

    def write_half(part: JournalPart, data: bytes) -> None:
        write(part, data[: len(data) // 2])
        raise OSError("no space")

    def save_until_finalizing(owned: OwnedBatch, *, durable: bool = True) -> None:
        if owned.record.finalizing_at is not None:
            raise OSError("no space")
        save(owned, durable=durable)

    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create()
        owned = rig.own(batch_id)
        await rig.tear(owned, [0])
        if reason == "cancelled":
            rig.batches.cancel(rig.tenant, batch_id)
        elif reason == "expired":
            owned.record.expires_at = 0
            owned.save()
        parts = rig.parts
        if reason == "failed":  # its key was removed
            rig.parts = replace(parts, lines=LineRunner(rig.gate(), {URL: Route(respond)}))
        owned.release()
        with monkeypatch.context() as patch:
            if breaks_rest:
                patch.setattr(JournalPart, "_write", write_half)
            else:
                patch.setattr(OwnedBatch, "save", save_until_finalizing)
            with pytest.raises(FolderLost):
                await rig.run(batch_id)
        rig.parts = parts
        record = await rig.run(batch_id)
        assert (record.status, record.num_completed, record.num_failed) == (reason, 1, 2)
        assert [error.code for error in record.errors] == (["invalid_api_key"] if reason == "failed" else [])
        errors = rig.results(record.error_file_id)
        assert [each["error"]["code"] for each in errors.values()] == [f"batch_{reason}"] * 2


async def test_a_wrong_input_has_no_results_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(owned: OwnedBatch) -> list[int]:
        raise OSError("no space")

    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create(11)  # the last line is longer than the others
        rig.parts = replace(rig.parts, inputs=rig.inputs(max_line_bytes=len(input_line(0))))
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "result_sizes", lose)
            with pytest.raises(FolderLost):
                await rig.run(batch_id)
        record = await rig.run(batch_id)
        assert (record.status, [error.code for error in record.errors]) == ("failed", ["line_too_long"])
        assert (record.output_file_id, record.error_file_id) == (None, None)


@pytest.mark.parametrize("reads_input", [True, False])
async def test_a_batch_that_is_given_up_has_one_result_for_each_request(tmp_path: Path, reads_input: bool) -> None:
    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create()
        owned = rig.own(batch_id)
        await rig.tear(owned, range(2))
        await BatchRun(owned, rig.parts).fail(FAULT, reads_input=reads_input)
        owned.release()
        record = rig.batches.find(rig.tenant, batch_id).record
        assert (record.status, record.errors) == ("failed", [FAULT])
        assert rig.results(record.output_file_id).keys() == {"line 0", "line 1"}
        if reads_input:
            assert (record.num_lines, record.num_completed, record.num_failed) == (3, 2, 1)
            errors = rig.results(record.error_file_id)
            assert {name: each["error"]["code"] for name, each in errors.items()} == {"line 2": "batch_failed"}
        else:
            assert record.error_file_id is None


async def test_a_cancelled_run_ends_after_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, is_reading, recover = threading.Event(), threading.Event(), journal_module._recover

    def wait(path: Path, ids: set[str], progress: Progress) -> None:
        is_reading.set()
        may_go_on.wait(20)
        recover(path, ids, progress)

    async with batch_rig(tmp_path) as rig:
        owned = rig.own(rig.create())
        await rig.tear(owned, range(2))
        num_open = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(journal_module, "_recover", wait)
        running = asyncio.create_task(BatchRun(owned, rig.parts).run())
        await until(is_reading.is_set)
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0.05)
            assert not running.done()  # another router must not own the batch yet
        may_go_on.set()
        await asyncio.wait([running])
        assert running.cancelled()
        assert len(os.listdir("/proc/self/fd")) == num_open
        owned.release()


async def test_a_cancelled_search_gives_its_batch_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, is_owner = threading.Event(), threading.Event()

    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create()
        own = rig.batches.own

        def wait(*place: str) -> OwnedBatch | None:
            owned = own(*place)  # type: ignore[arg-type]
            is_owner.set()
            may_go_on.wait(20)
            return owned

        with monkeypatch.context() as patch:
            patch.setattr(rig.batches, "own", wait)
            searching = asyncio.create_task(rig.runner.run())
            await until(is_owner.is_set)
            searching.cancel()
            await asyncio.sleep(0.05)
            may_go_on.set()
            await asyncio.wait([searching])
        rig.own(batch_id).release()
        await rig.runner._claim()
        [begun] = rig.runner._running.values()
        begun.cancel()  # before its first step
        await asyncio.wait([begun])
        rig.own(batch_id).release()
        assert not rig.runner._running
        assert not rig.runner._tenants


async def test_a_request_without_a_response_gets_an_error(tmp_path: Path) -> None:
    async def end(exchange: Exchange) -> None:
        pass

    async with batch_rig(tmp_path, end) as rig:
        record = await rig.run(rig.create(1))
        assert (record.status, record.num_failed) == ("completed", 1)
        [error] = rig.results(record.error_file_id).values()
        assert error["response"]["status_code"] == 500
        assert "without a response" in error["response"]["body"]["error"]["message"]


async def test_a_sweep_keeps_the_expired_inputs_of_batches(tmp_path: Path) -> None:
    async with batch_rig(tmp_path) as rig:
        batch_id = rig.create(expires_s=0)
        rig.batches.sweep()
        record = await rig.run(batch_id)
        assert (record.status, record.num_completed) == ("completed", 3)
        assert len(list(tmp_path.rglob("content"))) == 2
        rig.batches.sweep()
        assert len(list(tmp_path.rglob("content"))) == 1


async def test_the_router_holds_no_body_that_has_been_parsed(tmp_path: Path) -> None:
    num_references = []

    async def serve(exchange: Exchange) -> None:
        body = await exchange.read(0)
        exchange.forget_body()
        num_references.append(sys.getrefcount(body))
        await exchange.respond(200, b"{}")

    async with batch_rig(tmp_path, serve) as rig:
        await rig.run(rig.create())
        assert num_references == [2] * 3  # the variable and the argument


async def test_responses_that_are_not_written_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write, write, num_served = threading.Event(), JournalPart._write, 0

    def stall(part: JournalPart, data: bytes) -> None:
        may_write.wait(20)
        write(part, data)

    async def serve(exchange: Exchange) -> None:
        nonlocal num_served
        num_served += 1
        await exchange.respond(200, b'"' + b"x" * 1000 + b'"')

    monkeypatch.setattr(run_module, "MAX_BYTES", 10_000)
    monkeypatch.setattr(JournalPart, "_write", stall)
    async with batch_rig(tmp_path, serve) as rig:
        running = asyncio.create_task(rig.run(rig.create(200)))
        await until(lambda: num_served > 1)
        await asyncio.sleep(0.5)
        assert num_served < 40
        may_write.set()
        assert (await running).num_completed == 200


async def test_searches_take_a_small_part_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_searches = 0

    def search(_known: object) -> list[Candidate]:
        nonlocal num_searches
        num_searches += 1
        end_s = time.thread_time() + 0.1
        while time.thread_time() < end_s:
            pass
        return []

    monkeypatch.setattr(runner_module, "CLAIM_S", 0.01)
    async with batch_rig(tmp_path) as rig:
        monkeypatch.setattr(rig.batches, "candidates", search)
        running = asyncio.create_task(rig.runner.run())
        await asyncio.sleep(1.5)
        running.cancel()
        await asyncio.wait([running])
        assert num_searches == 1
