"""Logs stay below their bound, and keep what is newest."""

from pathlib import Path

import pytest

from baton.deployment.local.log_bound import LogBound


def test_a_log_is_moved_once_it_is_too_large_and_its_writer_goes_on(tmp_path: Path) -> None:
    path, older = tmp_path / "decode-0.log", tmp_path / "decode-0.log.1"
    bound = LogBound([path, tmp_path / "router.log"], max_bytes=100)
    bound.check()  # no file yet
    with path.open("ab", buffering=0) as log:  # as a child process has it
        log.write(b"a" * 100)
        bound.check()
        assert not older.exists()
        log.write(b"b")
        bound.check()
        assert (path.read_bytes(), older.read_bytes()) == (b"", b"a" * 100 + b"b")
        log.write(b"c" * 101)
        bound.check()
        assert (path.read_bytes(), older.read_bytes()) == (b"", b"c" * 101)
        log.write(b"d")
    assert path.read_bytes() == b"d"


def test_a_log_that_cannot_be_moved_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "decode-0.log"
    path.write_bytes(b"a" * 101)
    (tmp_path / "decode-0.log.1").mkdir()
    bound = LogBound([path], max_bytes=100)
    bound.check()
    bound.check()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [f"cannot shorten {path}"]
    assert path.read_bytes() == b"a" * 101
