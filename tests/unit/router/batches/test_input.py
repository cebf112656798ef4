"""The check of a batch's input."""

import asyncio
import io
import json
from collections.abc import Iterator

import pytest

from baton.router.batches.input import MAX_ERRORS, MAX_LINES, InputReader
from baton.router.files.disk import NUM_THREADS, Disk

URL = "/v1/completions"


def line(custom_id: str) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": custom_id}}).encode()


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.close()


def reader(disk: Disk, max_line_bytes: int = 1000) -> InputReader:
    return InputReader(disk, max_line_bytes, lambda: 4096)


async def test_each_line_is_found_again(disk: Disk) -> None:
    names = ["a", "ü", "😀" * 100, "last"]
    file = io.BytesIO(b"\n \r\n".join(map(line, names)))
    found = await reader(disk, 10_000).read(file, URL)
    assert found.errors == []
    assert [each.custom_id for each in found.lines] == names
    assert [json.loads(await reader(disk).body(file, each)) for each in reversed(found.lines)] == [
        {"prompt": each} for each in names[::-1]
    ]


async def test_lines_errors_and_bytes_are_bounded(disk: Disk) -> None:
    lines = b"\n".join(line(str(number)) for number in range(MAX_LINES + 5))
    many = await reader(disk).read(io.BytesIO(lines), URL)
    assert [(each.code, each.line) for each in many.errors] == [("too_many_requests", MAX_LINES + 1)]
    wrong = await reader(disk).read(io.BytesIO(b"x\n" * 1000), URL)
    assert len(wrong.errors) == MAX_ERRORS
    lines = line("a") + b"\n" + line("b" * 1000) + b"\n" + line("c")
    long = await reader(disk).read(io.BytesIO(lines), URL)
    assert [(each.code, each.line) for each in long.errors] == [("line_too_long", 2)]


class Endless(io.BytesIO):
    """A file of blank lines, until it is stopped."""

    is_stopped = False

    def readline(self, size: int | None = -1, /) -> bytes:
        return b"" if self.is_stopped else b"\n"


async def test_large_inputs_leave_the_threads_to_others(disk: Disk) -> None:
    files = [Endless() for _ in range(NUM_THREADS + 1)]
    checking = [asyncio.create_task(reader(disk).read(each, URL)) for each in files]
    try:
        for _ in range(5):
            await asyncio.wait_for(disk.run(lambda: None), 10)
        assert not any(each.done() for each in checking)
    finally:
        for each in files:
            each.is_stopped = True
    assert [(await each).errors[0].code for each in checking] == ["empty_file"] * len(files)
