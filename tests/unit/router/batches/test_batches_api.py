"""Files and batches through the real client, over real HTTP."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from baton.router.auth.api_key import digest_of
from baton.router.batches.api import PAGES
from baton.router.batches.record import BatchError, BatchRecord, new_batch_id
from baton.router.files import disk as disk_module
from baton.router.files.folder import FileFolder
from baton.router.files.record import tenant_of
from tests.unit.router.api_keys import TestKeys
from tests.unit.router.batches.batch_client import CHAT, chat_line, ended, results, start
from tests.unit.router.rigs.running_router import RunningRouter, http_client, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


@asynccontextmanager
async def keyed(router: RunningRouter, *keys: str) -> AsyncIterator[list[AsyncOpenAI]]:
    """Yield a client with each key."""
    async with AsyncExitStack() as stack:
        url = f"{router.url}/v1"
        yield [
            await stack.enter_async_context(
                AsyncOpenAI(base_url=url, api_key=key, max_retries=0, http_client=http_client())
            )
            for key in keys
        ]


async def test_files_are_uploaded_listed_read_and_deleted(tmp_path: Path) -> None:
    async with running_router(files_dir=str(tmp_path / "files")) as router:
        files = router.openai.files
        content = b"\r\n--x\x00\n" * 300_000
        created = [await files.create(file=(f"../é{number}.jsonl", content), purpose="batch") for number in range(3)]
        assert [(each.bytes, each.filename, each.purpose) for each in created] == [
            (len(content), f"../é{number}.jsonl", "batch") for number in range(3)
        ]
        assert (await files.content(created[0].id)).content == content
        assert await files.retrieve(created[1].id) == created[1]
        listed = [each async for each in files.list(limit=2, order="asc")]
        assert sorted(each.id for each in listed) == sorted(each.id for each in created)
        assert (await files.delete(created[0].id)).deleted
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await files.content(created[0].id)
        assert len((await files.list(purpose="batch")).data) == 2
        assert (await files.list(purpose="batch_output")).data == []
    assert [each.name for each in tmp_path.rglob("*") if "é" in each.name] == []


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"files": {"file": b"x"}}, "purpose: is missing"),
        ({"files": {"file": b"x"}, "data": {"purpose": "vision"}}, "purpose: is 'vision'"),
        ({"files": {"other": b"x"}}, "Unrecognized request argument supplied: other"),
        ({"files": {"file": b"x"}, "data": {"purpose": "x" * 999}}, "at most 256 bytes"),
        ({"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data; boundary=x"}}, "last boundary"),
        ({"content": b"--xyz", "headers": {"content-type": "multipart/form-data; boundary=x"}}, "follows a boundary"),
        ({"json": {"purpose": "batch"}}, "must be multipart/form-data"),
    ],
)
async def test_wrong_uploads_leave_nothing(tmp_path: Path, form: Any, text: str) -> None:
    async with running_router(files_dir=str(tmp_path)) as router:
        response = await router.http.post("/v1/files", **form)
        assert response.status_code == 400, response.text
        assert text in response.json()["error"]["message"]
        assert (await router.openai.files.list()).data == []
    assert not [each for each in tmp_path.rglob("*") if each.name == "content"]


async def test_files_are_bounded_in_bytes_for_a_tenant_and_in_all(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    names = "abcde"
    secrets = {name: keys.add(name) for name in names}
    mib = 1 << 20
    options: Any = {"files_dir": str(tmp_path / "files"), "files_bytes": 4 * mib, "api_keys_file": str(keys.path)}
    async with running_router(**options) as router, keyed(router, *secrets.values()) as clients:
        with pytest.raises(openai.BadRequestError, match="over 1048576 bytes"):
            await clients[0].files.create(file=("a", b"x" * (mib + 1000)), purpose="batch")
        for client in clients[:4]:
            await client.files.create(file=("a", b"x" * (mib - 5000)), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="no room for"):
            await clients[0].files.create(file=("a", b"x" * 10000), purpose="batch")
        with pytest.raises(openai.BadRequestError, match="no room for"):
            await clients[4].files.create(file=("a", b"x" * 100_000), purpose="batch")
        [own] = (await clients[1].files.list()).data
        for attempt in (clients[0].files.retrieve, clients[0].files.content, clients[0].files.delete):
            with pytest.raises(openai.NotFoundError):
                await attempt(own.id)
        await clients[1].files.delete(own.id)
        await clients[4].files.create(file=("a", b"x" * 100_000), purpose="batch")


async def test_without_a_folder_an_error_names_the_option() -> None:
    async with running_router() as router:
        for attempt in (
            router.openai.files.list(),
            router.openai.batches.list(),
            router.openai.files.create(file=b"x", purpose="batch"),
            router.openai.batches.create(input_file_id="file-1", endpoint="/v1/completions", completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError, match="--files-dir"):
                await attempt


async def test_a_batch_has_the_responses_of_single_requests(tmp_path: Path) -> None:
    async with running_router(ScriptedWorker(), files_dir=str(tmp_path)) as router:
        lines = [chat_line(f"line-{number}", f"Question {number % 7}", seed=number) for number in range(40)]
        wrong = chat_line("wrong", temperature=-1)
        streamed = chat_line("streamed", stream=True)
        batch = await start(router.openai, [*lines, wrong, b"", streamed], metadata={"a": "b"})
        assert (batch.status, batch.metadata, batch.output_file_id) == ("validating", {"a": "b"}, None)
        batch = await ended(router.openai, batch)
        assert (batch.status, batch.errors) == ("completed", None)
        counts = batch.request_counts
        assert counts is not None
        assert (counts.total, counts.completed, counts.failed) == (42, 40, 2)
        assert batch.expires_at == batch.created_at + 86400
        assert batch.completed_at >= batch.finalizing_at >= batch.in_progress_at >= batch.created_at  # type: ignore[operator]
        output = await results(router.openai, batch.output_file_id)
        assert output.keys() == {line["custom_id"] for line in lines}
        for line in lines:
            result = output[line["custom_id"]]
            assert result["error"] is None
            assert result["response"]["status_code"] == 200
            single = (await router.http.post(CHAT, json=line["body"])).json()
            assert result["response"]["body"]["choices"] == single["choices"]
            assert result["response"]["body"]["usage"]["completion_tokens"] == 8
        errors = await results(router.openai, batch.error_file_id)
        assert {name: each["response"]["status_code"] for name, each in errors.items()} == {
            "wrong": 400, "streamed": 400,
        }  # fmt: skip
        assert errors["wrong"]["response"]["body"]["error"]["param"] == "temperature"
        listed = await router.openai.batches.list(limit=1)
        assert listed.data == [batch]
        with pytest.raises(openai.BadRequestError, match="its status is 'completed'"):
            await router.openai.batches.cancel(batch.id)


async def test_wrong_lines_fail_the_batch_before_it_starts(tmp_path: Path) -> None:
    worker = ScriptedWorker()
    async with running_router(worker, files_dir=str(tmp_path)) as router:
        good = chat_line("good")
        lines = [
            good, b"{", b"[]", {**good, "custom_id": "a", "method": "GET"}, {**good, "custom_id": "b", "url": "/v1/x"},
            {**good, "custom_id": 5}, good, {"custom_id": "c"}, {**good, "custom_id": "d", "body": 1},
            {**good, "custom_id": "e", "more": 1},
        ]  # fmt: skip
        batch = await ended(router.openai, await start(router.openai, lines))
        assert (batch.status, batch.output_file_id) == ("failed", None)
        assert batch.errors is not None
        assert [(each.line, each.code) for each in batch.errors.data or ()] == [
            (2, "invalid_json_line"), (3, "invalid_json_line"), (4, "invalid_method"), (5, "mismatched_url"),
            (6, "invalid_custom_id"), (7, "duplicate_custom_id"), (8, "missing_required_parameter"),
            (9, "invalid_body"), (10, "unknown_parameter"),
        ]  # fmt: skip
        empty = await ended(router.openai, await start(router.openai, []))
        assert empty.errors is not None
        assert [each.code for each in empty.errors.data or ()] == ["empty_file"]
        file = await router.openai.files.create(file=b"x", purpose="batch")
        for options in ({"endpoint": "/v1/x"}, {"completion_window": "1"}, {"metadata": {"a": 1}}):
            fields: Any = {"endpoint": CHAT, "completion_window": "24h", **options}
            with pytest.raises(openai.BadRequestError):
                await router.openai.batches.create(input_file_id=file.id, **fields)
        with pytest.raises(openai.NotFoundError, match="No such File") as caught:
            await router.openai.batches.create(input_file_id="file-0", endpoint=CHAT, completion_window="24h")  # type: ignore[arg-type]
        assert caught.value.param == "input_file_id"


async def test_cancelled_and_expired_batches_keep_what_they_have(tmp_path: Path) -> None:
    worker = ScriptedWorker()
    async with running_router(worker, files_dir=str(tmp_path)) as router:
        quick = [chat_line("quick", max_tokens=1)]
        slow = [chat_line(f"slow-{number}") for number in range(3)]
        worker.go_on.clear()
        cancelled = await start(router.openai, [*quick, *slow])
        expired: Any = await start(router.openai, [*quick, *slow], completion_window="2s")
        while (await router.openai.batches.retrieve(cancelled.id)).request_counts.completed < 1:  # type: ignore[union-attr]
            await asyncio.sleep(0.02)
        with pytest.raises(openai.ConflictError, match="is the input of"):
            await router.openai.files.delete(cancelled.input_file_id)
        assert (await router.openai.batches.cancel(cancelled.id)).status == "cancelling"
        for batch, status in ((cancelled, "cancelled"), (expired, "expired")):
            batch = await ended(router.openai, batch)
            assert batch.status == status
            assert (await results(router.openai, batch.output_file_id)).keys() == {"quick"}
            errors = await results(router.openai, batch.error_file_id)
            assert {name: each["error"]["code"] for name, each in errors.items()} == {
                line["custom_id"]: f"batch_{status}" for line in slow
            }
        assert (await router.http.get("/workers")).json()["router"]["inflight"] == 0
        await router.openai.files.delete(cancelled.input_file_id)


async def test_a_batch_is_its_tenants_and_fails_when_its_key_is_removed(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    one, other = keys.add("one", requests_per_minute=600), keys.add("other")
    worker = ScriptedWorker()
    worker.go_on.clear()
    options: Any = {"files_dir": str(tmp_path / "files"), "api_keys_file": str(keys.path), "batch_inflight": 2}
    async with running_router(worker, **options) as router, keyed(router, one, other) as (client, stranger):
        batch = await start(client, [chat_line(f"{number}", max_tokens=1 + number) for number in range(20)])
        for attempt in (stranger.batches.retrieve, stranger.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                await attempt(batch.id)
        assert (await stranger.batches.list()).data == []
        while (await client.batches.retrieve(batch.id)).request_counts.completed < 1:  # type: ignore[union-attr]
            await asyncio.sleep(0.02)
        keys.remove("one")
        await asyncio.sleep(1.2)  # until the router reads the file again
        worker.go_on.set()
        folder = tmp_path / "files" / "tenants"
        await until(lambda: bool(list(folder.glob("*/batches/ended/*"))))
        keys.entries.append({"name": "one", "sha256": digest_of(one.encode()).hex()})
        keys.write()
        await asyncio.sleep(1.2)
        batch = await client.batches.retrieve(batch.id)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [each.code for each in batch.errors.data or ()] == ["invalid_api_key"]
        output, errors = [await results(client, each) for each in (batch.output_file_id, batch.error_file_id)]
        assert len(output) + len(errors) == 20
        assert len(output) >= 1


async def test_refused_requests_run_again(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = keys.add("one", max_inflight=1)
    worker = ScriptedWorker()
    options: Any = {"files_dir": str(tmp_path / "files"), "api_keys_file": str(keys.path)}
    async with running_router(worker, **options) as router, keyed(router, key) as (client,):
        batch = await ended(client, await start(client, [chat_line(f"{number}") for number in range(4)]))
        assert batch.status == "completed"
        assert len(await results(client, batch.output_file_id)) == 4
        page = (await router.http.get("/metrics")).text
        [repeated] = [
            line
            for line in page.splitlines()
            if line.startswith("baton:batch_requests_repeated_total{") and "refused" in line
        ]
        assert float(repeated.rsplit(" ", 1)[1]) > 0


async def test_a_page_of_batches_that_is_not_read_is_counted(tmp_path: Path) -> None:
    async with running_router(files_dir=str(tmp_path)) as router:
        await router.openai.batches.list()
        folder = tmp_path / "tenants" / tenant_of(None) / "batches" / "ended"
        errors = [BatchError("code", "x" * 1000, None, number) for number in range(100)]
        for number in range(100):
            record = BatchRecord(
                id=new_batch_id(), key_name=None, endpoint=CHAT, input_file_id="file-0", completion_window="1h",
                created_at=number, expires_at=1, status="failed", errors=errors,
            )  # fmt: skip
            (folder / record.id).mkdir()
            (folder / record.id / "batch.json").write_bytes(record.encoded())
        listed = await router.http.get("/v1/batches?limit=100")
        assert [each["created_at"] for each in listed.json()["data"]] == list(reversed(range(100)))
        _, writer = await asyncio.open_connection(*router.url.removeprefix("http://").split(":"), limit=1024)
        writer.write(b"GET /v1/batches?limit=100 HTTP/1.1\r\nhost: x\r\n\r\n")

        async def num_unread() -> float:
            page = (await router.http.get("/metrics")).text
            [line] = [each for each in page.splitlines() if each.startswith("baton:router_unread_bytes{")]
            return float(line.rsplit(" ", 1)[1])

        async with asyncio.timeout(20):
            while await num_unread() < len(listed.content) / 2:
                await asyncio.sleep(0.02)
        writer.close()


def test_a_page_describes_its_own_items_alone() -> None:
    described: list[str] = []

    @dataclass(frozen=True)
    class Item:
        id: str

        def body(self) -> dict[str, object]:
            described.append(self.id)
            return {"id": self.id}

    page = PAGES.body({"limit": "2", "after": "7"}, [Item(f"{number}") for number in range(10)])
    assert (page["data"], page["has_more"]) == ([{"id": "6"}, {"id": "5"}], True)
    assert described == ["6", "5"]


async def test_a_deeply_nested_body_is_an_error_of_its_request_alone(tmp_path: Path) -> None:
    async with running_router(ScriptedWorker(), files_dir=str(tmp_path)) as router:
        deep: Any = []
        for _ in range(300):
            deep = [deep]
        line = chat_line("deep", stop=deep)
        single = await router.http.post(CHAT, json=line["body"])
        batch = await ended(router.openai, await start(router.openai, [line, chat_line("a")]))
        assert batch.status == "completed"
        assert list(await results(router.openai, batch.output_file_id)) == ["a"]
        [error] = (await results(router.openai, batch.error_file_id)).values()
        assert error["response"]["status_code"] == single.status_code == 400
        assert error["response"]["body"] == single.json()


async def test_no_request_starts_with_a_key_that_was_removed_while_it_waited(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    one = keys.add("one")
    keys.add("other")
    worker = ScriptedWorker()
    worker.go_on.clear()
    options: Any = {"files_dir": str(tmp_path / "files"), "api_keys_file": str(keys.path), "batch_inflight": 1}
    async with running_router(worker, **options) as router, keyed(router, one) as (client,):
        await start(client, [chat_line(f"{number}") for number in range(3)])
        await until(lambda: len(worker.commands) == 1)
        await asyncio.sleep(0.3)  # the second one waits for room
        keys.remove("one")
        await asyncio.sleep(1.2)  # the key file is read once a second
        worker.go_on.set()
        await until(lambda: bool(list((tmp_path / "files" / "tenants").glob("*/batches/ended/*"))))
        assert len(worker.commands) == 1


async def test_requests_over_the_limit_of_completions_get_their_errors_while_others_run(tmp_path: Path) -> None:
    worker = ScriptedWorker()
    async with running_router(worker, files_dir=str(tmp_path)) as router:
        worker.go_on.clear()
        body = chat_line("single")["body"]
        single = asyncio.create_task(router.http.post(CHAT, json=body))
        await until(lambda: len(worker.commands) == 1)
        batch = await ended(router.openai, await start(router.openai, [chat_line("large", n=5000)]))
        errors = await results(router.openai, batch.error_file_id)
        assert {name: each["response"]["status_code"] for name, each in errors.items()} == {"large": 400}
        worker.go_on.set()
        assert (await single).status_code == 200


async def test_reads_of_files_that_hang_do_not_interrupt_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_read, worker = threading.Event(), ScriptedWorker()
    async with running_router(worker, files_dir=str(tmp_path)) as router:
        worker.go_on.clear()
        batch = await start(router.openai, [chat_line(f"{number}") for number in range(3)])
        await until(lambda: len(worker.commands) == 3)
        monkeypatch.setattr(disk_module, "MAX_WAITING", 20)
        monkeypatch.setattr(FileFolder, "find", lambda *_: may_read.wait(30))
        path = f"/v1/files/{batch.input_file_id}"
        reads = [asyncio.create_task(router.http.get(path)) for _ in range(30)]
        await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
        assert {each.result().status_code for each in reads if each.done()} == {503}
        worker.go_on.set()
        await until(lambda: bool(list(tmp_path.glob("tenants/*/batches/ended/*"))))
        monkeypatch.undo()
        may_read.set()
        await asyncio.gather(*reads, return_exceptions=True)
        assert (await ended(router.openai, batch)).status == "completed"
