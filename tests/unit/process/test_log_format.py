"""Log lines as JSON objects."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from baton.process.log_format import LogSource, make_formatter
from baton.process.log_record import read_record
from baton.process.log_records import LogFile
from baton.process.log_settings import LOG_FORMATS, LogSettings
from baton.process.logs import change_log_role, log_settings, set_up_logging
from baton.process.request_scope import request_scope


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """The standard error of a process that logs JSON; the test's own handlers return afterwards."""
    root, text = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", text)
    set_up_logging(LogSource("decode-0", "decode", "decode-0"), LogSettings("debug", "json"))
    yield text
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def objects(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_line_is_an_object_with_the_request_and_the_exception(log: io.StringIO) -> None:
    logger = logging.getLogger("baton.test")
    logger.info("%d workers", 2)
    with request_scope("r1"):
        try:
            raise ValueError("wrong\nin two lines")
        except ValueError:
            logger.exception("it failed")
    plain, failed = objects(log)
    assert list(plain) == ["time", "level", "process", "role", "worker", "host", "pid", "logger", "message"]
    assert (plain["level"], plain["process"], plain["logger"]) == ("INFO", "decode-0", "baton.test")
    assert plain["message"] == "2 workers"
    assert (failed["request_id"], failed["message"]) == ("r1", "it failed")
    assert failed["exception"].startswith("Traceback")
    assert failed["exception"].endswith("ValueError: wrong\nin two lines")


@pytest.mark.parametrize("message", [{"a": 1}, ("x", 2), "half a character \ud800", b"bytes"])
def test_a_message_may_be_any_object(log: io.StringIO, message: object, monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    ours = [each for each in root.handlers if isinstance(each, logging.StreamHandler) and each.stream is log]
    monkeypatch.setattr(root, "handlers", ours)  # a report of pytest cannot hold half a character
    logging.getLogger("library").info(message)
    assert [each["message"] for each in objects(log)] == [str(message)]


def test_attributes_of_libraries_are_left_out(log: io.StringIO) -> None:
    logging.getLogger("library").info("started", extra={"color_message": "red", "body": "a prompt"})
    assert set(objects(log)[0]) == {"time", "level", "process", "role", "worker", "host", "pid", "logger", "message"}


def test_the_role_is_that_which_the_worker_has_now(log: io.StringIO) -> None:
    logging.getLogger("baton.test").info("before")
    change_log_role("prefill")
    logging.getLogger("baton.test").info("after")
    assert [(each["message"], each["role"], each["worker"]) for each in objects(log)] == [
        ("before", "decode", "decode-0"),
        ("after", "prefill", "decode-0"),
    ]


def test_attributes_of_libraries_do_not_replace_fields(log: io.StringIO) -> None:
    logger = logging.getLogger("library")
    logger.info("started")
    names = ("time", "level", "role", "worker", "host", "pid", "logger", "request_id", "exception", "stack")
    logger.info("started", extra=dict.fromkeys(names, "a prompt"))
    plain, extended = objects(log)
    assert extended | {"time": plain["time"]} == plain
    assert "a prompt" not in log.getvalue()


def test_both_formats_are_read_as_the_same_records() -> None:
    record = logging.LogRecord("baton.test", logging.WARNING, "", 0, "%s is slow", ("decode",), None)
    with request_scope("r1"):
        lines = [make_formatter(name, LogSource("decode-0")).format(record) for name in LOG_FORMATS]
    as_text, as_json = map(read_record, lines)
    assert as_text is not None
    assert as_text.line == lines[0]
    assert as_text == as_json


def test_an_exception_is_part_of_the_text() -> None:
    line = json.dumps(
        {"time": "2026", "level": "ERROR", "process": "p", "logger": "l", "message": "m", "exception": "e"}
    )
    records = LogFile("x", io.BytesIO(f"{line}\n".encode())).records()
    assert [each.line for each in records] == ["2026 ERROR   p l: m\ne"]


def test_a_half_of_a_character_can_be_printed() -> None:
    read = read_record('{"time": "2026", "process": "p", "message": "no file a\\udce4b"}')
    assert read is not None
    assert read.text == "no file a\\udce4b"
    assert read.line.encode().endswith(rb"no file a\udce4b")


@pytest.mark.parametrize(
    "line", ['{"time": 1}', "{cut", "{}", '{"message": "of another program"}', '{"a":' + "[" * 100_000]
)
def test_json_of_other_programs_has_no_head(line: str) -> None:
    assert read_record(line) is None


def test_a_process_knows_its_settings(log: io.StringIO) -> None:
    assert log_settings() == LogSettings("debug", "json")
    assert log_settings().flags == ["--log-level=debug", "--log-format=json"]
    assert log.getvalue() == ""


def test_uncaught_exceptions_of_threads_are_records() -> None:
    code = """
import threading
from baton.process.log_format import LogSource
from baton.process.log_settings import LogSettings
from baton.process.logs import log_uncaught_exceptions, set_up_logging

set_up_logging(LogSource("decode-0"), LogSettings("info", "json"))
log_uncaught_exceptions()
thread = threading.Thread(target=lambda: 1 / 0, name="engine")
thread.start()
thread.join()
raise ValueError("no")
"""
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=False)
    in_thread, in_process = map(json.loads, done.stderr.splitlines())
    assert done.returncode == 1
    assert in_thread["message"] == "uncaught exception in thread engine"
    assert in_thread["exception"].endswith("ZeroDivisionError: division by zero")
    assert in_process["exception"].endswith("ValueError: no")
