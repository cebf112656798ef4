"""The journal: each request has one result, also after a crash in the middle of a write."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from baton.router.batches.journal import Journal, JournalPart, LineResult
from baton.router.files.disk import Disk, FolderLost


def folder(path: Path) -> Path:
    for name in ("output", "errors"):
        (path / name).mkdir(exist_ok=True)
    return path


def owns() -> None:
    pass


def result(number: int) -> LineResult:
    status = 400 if number % 5 == 0 else 200
    return LineResult(f"line {number}", status, "id", b'{"text": "%d"}' % number)


def ids(path: Path) -> list[str]:
    lines = [line for name in ("output", "errors") for line in (path / name / "content").read_bytes().splitlines()]
    return [json.loads(line)["custom_id"] for line in lines]


async def test_concurrent_results_are_written_once_each(tmp_path: Path) -> None:
    disk = Disk()
    journal = Journal(folder(tmp_path), disk, owns)
    await asyncio.gather(*(journal.append(result(number)) for number in range(500)))
    assert sorted(ids(tmp_path)) == sorted(f"line {number}" for number in range(500))
    assert (len(journal.progress.succeeded), len(journal.progress.failed)) == (400, 100)
    lines = (tmp_path / "output" / "content").read_bytes().splitlines()
    first = json.loads(lines[0])
    assert first["response"] == {"status_code": 200, "request_id": "id", "body": {"text": "1"}}
    assert first["error"] is None
    with pytest.raises(AssertionError, match="has a result already"):
        await journal.append(result(3))
    await journal.close()
    disk.close()


async def test_a_cancelled_caller_does_not_tear_a_line(tmp_path: Path) -> None:
    disk = Disk()
    journal = Journal(folder(tmp_path), disk, owns)
    appending = [asyncio.create_task(journal.append(result(number))) for number in range(100)]
    await asyncio.sleep(0)
    for task in appending[::2]:
        task.cancel()
    await asyncio.gather(*appending, return_exceptions=True)
    await journal.close()
    assert sorted(ids(tmp_path)) == sorted(f"line {number}" for number in range(100))
    disk.close()


@pytest.mark.parametrize("seed", range(20))
async def test_a_torn_journal_goes_on_where_it_is_whole(tmp_path: Path, seed: int) -> None:
    rng, disk = random.Random(seed), Disk()
    journal = Journal(folder(tmp_path), disk, owns)
    for number in range(20):
        await journal.append(result(number))
    await journal.close()
    for name in ("output", "errors"):
        path = tmp_path / name / "content"
        content = path.read_bytes()
        path.write_bytes(content[: rng.randrange(len(content))] + rng.choice([b"", b"\0\0\0", b"\0\n"]))
    again = Journal(tmp_path, disk, owns)
    rest = [number for number in range(20) if not again.progress.has(f"line {number}")]
    assert rest
    assert sorted(ids(tmp_path)) == sorted(again.progress.succeeded | again.progress.failed)
    for number in rest:
        await again.append(result(number))
    await again.close()
    assert sorted(ids(tmp_path)) == sorted(f"line {number}" for number in range(20))
    disk.close()


async def test_a_repeated_result_is_removed_and_counts_once(tmp_path: Path) -> None:
    disk = Disk()
    journal = Journal(folder(tmp_path), disk, owns)
    for number in range(6):
        await journal.append(result(number))
    await journal.close()
    with (tmp_path / "errors" / "content").open("ab") as errors:  # another owner's results of the same requests
        for number in (0, 1, 2):
            errors.write(LineResult(f"line {number}", 400, "id", b"{}").encoded())
    again = Journal(tmp_path, disk, owns)
    assert again.progress.succeeded == {f"line {number}" for number in range(1, 5)}
    assert again.progress.failed == {"line 0", "line 5"}
    assert sorted(ids(tmp_path)) == [f"line {number}" for number in range(6)]
    await again.close()
    disk.close()


async def test_after_a_failed_write_nothing_is_written(tmp_path: Path) -> None:
    disk = Disk()
    (folder(tmp_path) / "output" / "content").symlink_to("/dev/full")
    part = JournalPart(tmp_path / "output" / "content", disk, owns)
    outcomes = await asyncio.gather(*(part.append(b"x") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [FolderLost] * 3
    with pytest.raises(FolderLost, match="an earlier line"):
        await part.append(b"y")
    await part.close()
    disk.close()
