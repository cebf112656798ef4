"""`baton logs` on files, directories, standard input and the logs of detached servers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from baton.__main__ import main

HEAD = "2026-01-31T11:58:0{}.000Z {:<7} {} baton.x: {}\n"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The directory of a server's logs."""
    directory = tmp_path / "baton" / "servers" / "default" / "logs"
    directory.mkdir(parents=True)
    (directory / "router.log").write_text(HEAD.format(1, "INFO", "router", "[r1] routed"))
    (directory / "decode-0.log").write_text(
        HEAD.format(0, "DEBUG", "decode-0", "starts") + HEAD.format(2, "WARNING", "decode-0", "[r1] slow")
    )
    return directory


def run(*words: str, state: Path | None = None) -> Result:
    return CliRunner().invoke(main, ["logs", *words], env={"XDG_STATE_HOME": str(state or "/nonexistent")})


def texts(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [line.partition(": ")[2] for line in result.output.splitlines()]


def test_a_directory_is_shown_in_the_order_of_time(logs: Path) -> None:
    assert texts(run(str(logs))) == ["starts", "[r1] routed", "[r1] slow"]
    assert texts(run(str(logs), "--pool", "decode", "--level", "info")) == ["[r1] slow"]
    assert texts(run(str(logs), "--worker", "router")) == ["[r1] routed"]


def test_by_default_the_newest_detached_server_is_shown(logs: Path, tmp_path: Path) -> None:
    older = tmp_path / "baton" / "servers" / "older" / "logs"
    older.mkdir(parents=True)
    (older / "router.log").write_text(HEAD.format(0, "INFO", "router", "old"))
    os.utime(older / "router.log", (1, 1))
    assert texts(run("--request-id", "r1", state=tmp_path)) == ["[r1] routed", "[r1] slow"]


def test_records_become_json(logs: Path) -> None:
    result = run(str(logs / "router.log"), "--json")
    assert json.loads(result.output) == {
        "time": "2026-01-31T11:58:01.000Z",
        "level": "INFO",
        "process": "router",
        "logger": "baton.x",
        "request_id": "r1",
        "message": "routed",
    }


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--since", "soon"), "neither a duration such as 10m nor a time"),
        ((), "name files or the directory that --log-dir of baton serve has"),
        (("-", "/"), "cannot be read together with files"),
    ],
)
def test_impossible_calls_say_what_would_be_right(words: tuple[str, ...], error: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert error in " ".join(result.output.split())


def test_what_was_moved_out_of_a_log_is_shown_first(logs: Path) -> None:
    (logs / "decode-0.log.1").write_text(HEAD.format(0, "INFO", "decode-0", "older"))
    assert texts(run(str(logs))) == ["older", "starts", "[r1] routed", "[r1] slow"]


def test_an_unreadable_log_is_named(logs: Path) -> None:
    (logs / "x.log").mkdir()
    result = run(str(logs))
    assert result.exit_code == 1
    assert "x.log: Is a directory" in " ".join(result.output.split())


def test_a_dangling_link_is_left_out(logs: Path) -> None:
    (logs / "gone.log").symlink_to("nowhere")
    assert len(texts(run(state=logs.parents[3]))) == 3


@pytest.mark.slow
def test_a_reader_that_ends_is_no_error(logs: Path) -> None:
    (logs / "router.log").write_text(HEAD.format(1, "INFO", "router", "routed") * 100_000)
    with subprocess.Popen(
        [sys.executable, "-m", "baton", "logs", str(logs)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as shown:
        assert shown.stdout is not None
        assert shown.stderr is not None
        shown.stdout.readline()
        shown.stdout.close()
        assert shown.stderr.read() == b""


@pytest.mark.slow
def test_standard_input_is_shown_as_it_is_written(logs: Path) -> None:
    argv = [sys.executable, "-m", "baton", "logs", "-", "--pool", "router"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shown:
        assert shown.stdin is not None
        assert shown.stdout is not None
        shown.stdin.write((logs / "router.log").read_bytes())
        shown.stdin.flush()
        assert shown.stdout.readline().endswith(b"routed\n")
        shown.stdin.close()
        assert shown.wait(60) == 0


def test_following_shows_what_is_written_later_and_new_files(logs: Path) -> None:
    argv = [sys.executable, "-m", "baton", "logs", str(logs), "--follow"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as shown:
        assert shown.stdout is not None
        for _ in range(3):
            shown.stdout.readline()
        with (logs / "router.log").open("a") as log:
            log.write(HEAD.format(3, "INFO", "router", "later"))
        assert shown.stdout.readline().endswith("later\n")
        (logs / "prefill-0.log").write_text(HEAD.format(4, "INFO", "prefill-0", "new"))
        assert shown.stdout.readline().endswith("new\n")
        os.truncate(logs / "router.log", 0)
        (logs / "router.log").rename(logs / "router.log.1")
        (logs / "router.log").write_text(HEAD.format(5, "INFO", "router", "again"))
        assert shown.stdout.readline().endswith("again\n")
        shown.terminate()
