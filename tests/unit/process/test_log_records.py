"""Records that are read back from logs."""

import io
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from baton.process import log_records
from baton.process.log_record import LogFilter, since_time
from baton.process.log_records import GrowingFile, LogFile, Pipe, in_order

NOW = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
LINES = """\
a native library's line
2026-01-31T11:58:00.000Z INFO    decode-0 baton.worker.server: decode worker decode-0 serves at 127.0.0.1:1
2026-01-31T11:59:00.250Z ERROR   decode-0 baton.engine.loop: [chatcmpl-1] the engine failed
Traceback (most recent call last):
ValueError: no
2026-01-31T11:59:30.000Z WARNING prefill-1 baton.x: slow
"""


def read(text: str) -> LogFile:
    return LogFile("decode-0", io.BytesIO(text.encode()))


def test_lines_without_a_head_belong_to_the_record_in_front_of_them() -> None:
    native, serves, failed, slow = read(LINES).records()
    assert (native.time, native.level, native.process) == ("", "INFO", "decode-0")
    assert (serves.level, serves.logger, serves.request_id) == ("INFO", "baton.worker.server", "")
    assert (failed.request_id, failed.text.splitlines()[-1]) == ("chatcmpl-1", "ValueError: no")
    assert slow.process == "prefill-1"


@pytest.mark.parametrize(
    ("wanted", "loggers"),
    [
        (LogFilter(), ["", "baton.worker.server", "baton.engine.loop", "baton.x"]),
        (LogFilter(level="WARNING"), ["baton.engine.loop", "baton.x"]),
        (LogFilter(workers=frozenset({"prefill-1"})), ["baton.x"]),
        (LogFilter(pools=frozenset({"decode"})), ["", "baton.worker.server", "baton.engine.loop"]),
        (LogFilter(request_id="chatcmpl-1"), ["baton.engine.loop"]),
        (LogFilter(since="2026-01-31T11:59:00.000Z"), ["baton.engine.loop", "baton.x"]),
    ],
)
def test_records_are_selected(wanted: LogFilter, loggers: list[str]) -> None:
    assert [record.logger for record in read(LINES).records() if wanted.accepts(record)] == loggers


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("90s", "2026-01-31T11:58:30.000Z"),
        ("2h", "2026-01-31T10:00:00.000Z"),
        ("2026-01-30", "2026-01-30T00:00:00.000Z"),
        ("2026-01-31T12:30+01:00", "2026-01-31T11:30:00.000Z"),
    ],
)
def test_times_are_durations_or_dates(text: str, time: str) -> None:
    assert since_time(text, NOW) == time


@pytest.mark.parametrize(("text", "error"), [("yesterday", "yesterday"), ("9999999d", "before the year 1")])
def test_other_times_are_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        since_time(text, NOW)


def test_a_growing_file_is_read_on_and_a_truncated_one_anew(tmp_path: Path) -> None:
    path = tmp_path / "decode-0.log"
    head = "2026-01-31T11:58:00.000Z INFO    decode-0 baton.x: "
    path.write_text(f"{head}one\n{head}tw")
    file = GrowingFile(path)
    assert [record.text for record in file.records()] == ["one"]
    with path.open("a") as log:
        log.write("o\nmore of it\n")
    [two] = file.records()
    assert (two.text, two.process) == ("two\nmore of it", "decode-0")
    path.write_text(f"{head}new\n")
    assert file.follows(path)
    assert [record.text for record in file.records()] == ["new"]
    path.rename(tmp_path / "decode-0.log.1")
    path.write_text(f"{head}of another file\n")
    assert not file.follows(path)
    file.close()


def test_the_end_of_a_line_may_be_missing_at_the_end_of_a_log() -> None:
    file = read(LINES + "2026-01-31T11:59:40.000Z INFO    decode-0 baton.x: cut o")
    assert [record.text for record in file.records()][-1] == "slow"
    assert [record.text for record in file.records(is_last=True)] == ["cut o"]


def test_a_long_run_of_lines_without_a_head_is_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_records, "MAX_RECORD_CHARS", 1000)
    head = "2026-01-31T11:58:00.000Z ERROR   decode-0 baton.x: failed"
    lines = [head, *(f"line {number:03}" for number in range(300))]
    found = list(read("\n".join(lines) + "\n").records())
    assert "\n".join(record.line for record in found).splitlines() == lines
    assert {record.level for record in found} == {"ERROR"}
    assert 3 <= len(found) <= 4


def test_a_line_of_a_pipe_does_not_wait_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_records, "PIPE_POLL_S", 0.01)
    read_end, write_end = os.pipe()
    pipe = Pipe(read_end)
    file = LogFile("stdin", pipe)
    head = "2026-01-31T11:58:00.000Z INFO    decode-0 baton.x: "
    os.write(write_end, f"{head}one\nmore\n{head}tw".encode())
    assert [record.text for record in file.records()] == ["one\nmore"]
    os.write(write_end, b"o\xff")
    os.close(write_end)
    assert pipe.is_open
    assert list(file.records()) == []
    assert not pipe.is_open
    assert [record.text for record in file.records(is_last=True)] == ["two\ufffd"]
    os.close(read_end)


def test_logs_are_merged_without_reading_them_whole() -> None:
    num_read = 0

    def endless() -> Iterator[log_records.LogRecord]:
        nonlocal num_read
        while True:
            num_read += 1
            yield log_records.LogRecord(f"{num_read:09}", "INFO", "a", "x", "", "", "")

    merged = in_order([endless()])
    assert [next(merged).time for _ in range(3)] == ["000000001", "000000002", "000000003"]
    assert num_read <= 4


def test_records_of_several_files_are_in_the_order_of_time() -> None:
    first = "2026-01-31T11:58:00.000Z INFO    a x: 1\n2026-01-31T11:58:02.000Z INFO    a x: 3\n"
    second = "2026-01-31T11:58:01.000Z INFO    b x: 2\nwith more\n2026-01-31T11:58:03.000Z INFO    b x: 4\n"
    found = in_order([read(first).records(), read(second).records()])
    assert [record.text for record in found] == ["1", "2\nwith more", "3", "4"]


def test_a_request_may_have_brackets_in_its_id() -> None:
    [record] = read("2026-01-31T11:58:00.000Z INFO    decode-0 baton.x: [a]-[b] one\n").records()
    assert (record.request_id, record.text) == ("a]-[b", "one")
