"""Progress over a pipe."""

import os
import select
from collections.abc import Iterator

import pytest

from baton.process.progress import (
    Failed,
    Loading,
    Progress,
    ProgressError,
    ProgressReporter,
    Ready,
    Waiting,
    parse_progress,
)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def read_all(fd: int) -> list[Progress]:
    return [parse_progress(line) for line in os.read(fd, 1 << 16).splitlines()]


def test_messages_round_trip(pipe: tuple[int, int]) -> None:
    reporter = ProgressReporter(pipe[1])
    reporter.loading(0.42)
    reporter.waiting("127.0.0.1:29501")
    reporter.ready(address="127.0.0.1:41231", grpc_address="127.0.0.1:5")
    reporter.failed("model: no\nsuch thing")
    loading, waiting, ready, failed = read_all(pipe[0])
    assert loading == Loading(0.42)
    assert waiting == Waiting("127.0.0.1:29501")
    assert isinstance(ready, Ready)
    assert ready.address == "127.0.0.1:41231"
    assert ready.details["grpc_address"] == "127.0.0.1:5"
    assert failed == Failed("model: no\nsuch thing")


@pytest.mark.parametrize("letter", ["a", "\x00", "é", "𝄞"])
def test_a_failure_is_one_atomic_write(pipe: tuple[int, int], letter: str) -> None:
    ProgressReporter(pipe[1]).failed(letter * 9000)
    line = os.read(pipe[0], 1 << 16)
    assert len(line) < select.PIPE_BUF
    failed = parse_progress(line)
    assert isinstance(failed, Failed)
    assert 100 <= len(failed.message) <= 2000
    assert set(failed.message) == {letter}


def test_loading_is_throttled_but_its_end_is_not(pipe: tuple[int, int]) -> None:
    clock = Clock()
    reporter = ProgressReporter(pipe[1], clock)
    reporter.loading(0.1)
    reporter.loading(0.2)
    clock.now_s += 1
    reporter.loading(0.3)
    reporter.loading(1.5)
    assert read_all(pipe[0]) == [Loading(0.1), Loading(0.3), Loading(1.0)]


def test_a_closed_pipe_is_survived(pipe: tuple[int, int]) -> None:
    reporter = ProgressReporter(pipe[1])
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, pipe[0])  # closes the read end
    os.close(null)
    reporter.ready(address="a:1")
    reporter.failed("later")
    with pytest.raises(OSError, match="Broken pipe"):
        os.write(pipe[1], b"x")


def test_a_full_pipe_does_not_block(pipe: tuple[int, int]) -> None:
    clock = Clock()
    reporter = ProgressReporter(pipe[1], clock)
    for _ in range(10_000):
        clock.now_s += 1
        reporter.loading(0.5)
    assert set(read_all(pipe[0])) == {Loading(0.5)}
    reporter.ready(address="a:1")
    assert any(isinstance(progress, Ready) for progress in read_all(pipe[0]))


def test_without_a_pipe_nothing_is_written() -> None:
    reporter = ProgressReporter(None)
    reporter.loading(0.5)
    reporter.ready(address="a:1")
    assert reporter._fd is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"loading",
        b"[1]",
        b'{"stage":"loading"}',
        b'{"stage":"loading","fraction":2}',
        b'{"stage":"x"}',
        b'{"stage":"re',
        b"[" * 60_000,
    ],
)
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(ProgressError):
        parse_progress(line)
