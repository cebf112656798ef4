"""The check of a batch's input."""

import asyncio
import io
import json
import threading
import time
from collections.abc import Iterator

import orjson
import pytest

from baton.router.batches.input import MAX_ERRORS, MAX_LINES, InputReader
from baton.router.files.disk import NUM_THREADS, Disk
from baton.router.http.json_parts import MAX_ELEMENTS, MAX_OBJECTS

URL = "/v1/completions"


def line(custom_id: str) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": URL, "body": {"prompt": custom_id}}).encode()


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.close()


def reader(disk: Disk, max_line_bytes: int = 1000) -> InputReader:
    return InputReader(disk, max_line_bytes, lambda: 4096, max_completions=8)


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


async def test_lines_with_too_many_parts_are_not_parsed(disk: Disk) -> None:
    text = line("a").replace(b'"a"}}', b"[%b0]}}" % (b"0," * MAX_ELEMENTS))
    many = await reader(disk, 2 * MAX_ELEMENTS + 1000).read(io.BytesIO(line("b") + b"\n" + text), URL)
    assert [(each.code, each.line) for each in many.errors] == [("line_too_complex", 2)]
    text = line("a").replace(b'"a"}}', b"%b{}%b}}" % (b'{"a":' * (MAX_OBJECTS // 2), b"}" * (MAX_OBJECTS // 2)))
    deep = await reader(disk, 5 * MAX_OBJECTS).read(io.BytesIO(text), URL)
    assert [(each.code, each.line) for each in deep.errors] == [("line_too_complex", 1)]


async def test_a_blank_line_over_the_limit_does_not_hide_those_after_it(disk: Disk) -> None:
    found = await reader(disk).read(io.BytesIO(line("a") + b"\n" + b" " * 2000 + b"\n" + line("b")), URL)
    assert [(each.code, each.line) for each in found.errors] == [("line_too_long", 2)]


async def test_errors_repeat_little_of_a_line(disk: Disk) -> None:
    lines = [line("x" * 500)] * 2 + [line("y").replace(b'"custom_id"', b'"%b": 1, "custom_id"' % (b"z" * 500))]
    found = await reader(disk, 10_000).read(io.BytesIO(b"\n".join(lines)), URL)
    assert [each.code for each in found.errors] == ["duplicate_custom_id", "unknown_parameter"]
    assert all(len(orjson.dumps(each)) < 300 for each in found.errors)


class Watched(io.BytesIO):
    """A file that records the threads that read it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.threads = set[threading.Thread]()

    def read(self, size: int | None = -1, /) -> bytes:
        self.threads.add(threading.current_thread())
        return super().read(size)


async def test_bodies_are_read_one_at_a_time_and_apart_from_the_event_loop(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, inputs, num_now, most = Watched(b"\n".join(line(f"{number}") for number in range(9))), reader(disk), 0, 0
    found, loads = await inputs.read(file, URL), orjson.loads

    def watched(text: bytes) -> object:
        nonlocal num_now, most
        file.threads.add(threading.current_thread())
        num_now += 1
        most = max(most, num_now)
        time.sleep(0.01)
        num_now -= 1
        return loads(text)

    monkeypatch.setattr(orjson, "loads", watched)
    bodies = await asyncio.gather(*(inputs.body(file, each) for each in found.lines))
    assert [loads(each) for each in bodies] == [{"prompt": f"{number}"} for number in range(9)]
    assert threading.main_thread() not in file.threads
    assert most == 1


async def test_a_body_with_more_levels_than_orjson_writes_is_the_clients(disk: Disk) -> None:
    deep = "[" * 300 + "]" * 300
    body = '{"prompt": "\\"}]\\\\", "é": DEEP, "body": {"body": 1}}'.replace("DEEP", deep)
    with pytest.raises(TypeError):
        orjson.dumps(orjson.loads(body))
    text = '{"body": {"a": [1]}, "custom_id": "body", "b\\u006fdy" : BODY, "url": "/v1/completions", "method": "POST"}'
    text = text.replace("BODY", body)
    file = io.BytesIO(text.encode())
    found = await reader(disk, 10_000).read(file, URL)
    assert found.errors == []
    assert (await reader(disk).body(file, found.lines[0])).decode() == body


async def test_a_line_with_too_many_completions_takes_the_room_of_one(disk: Disk) -> None:
    bodies: list[dict[str, object]] = [
        {"n": 8}, {"prompt": ["a"] * 4, "n": 2}, {"n": 9}, {"n": 5000}, {"prompt": ["a"] * 500}, {"prompt": [1] * 500},
        {"n": 8.0}, {"n": 9.0}, {"n": 7.5}, {"prompt": [1.0] * 8},
    ]  # fmt: skip
    lines = [
        json.dumps({"custom_id": f"{number}", "method": "POST", "url": URL, "body": body})
        for number, body in enumerate(bodies)
    ]
    found = await reader(disk, 10_000).read(io.BytesIO("\n".join(lines).encode()), URL)
    assert [each.num_completions for each in found.lines] == [8, 8, 1, 1, 1, 1, 8, 1, 1, 1]


async def test_a_line_without_a_model_is_of_the_only_one(disk: Disk) -> None:
    bodies: list[dict[str, object]] = [{"model": "a"}, {}, {"model": ""}, {"model": "b"}, {"model": ["a"]}]
    lines = [
        json.dumps({"custom_id": f"{number}", "method": "POST", "url": URL, "body": body})
        for number, body in enumerate(bodies)
    ]
    text = "\n".join(lines).encode()
    for names, expected in ((["a"], ["a", "a", "a", "", ""]), (["a", "c"], ["a", "", "", "", ""])):
        inputs = InputReader(disk, 1000, lambda: 4096, names, max_completions=8)
        assert [each.model for each in (await inputs.read(io.BytesIO(text), URL)).lines] == expected
