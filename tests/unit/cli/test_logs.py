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


def run(*words: str, state: Path | None = None, text: str = "") -> Result:
    return CliRunner().invoke(main, ["logs", *words], env={"XDG_STATE_HOME": str(state or "/nonexistent")}, input=text)


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


def test_standard_input_becomes_json(logs: Path) -> None:
    result = run("-", "--json", text=(logs / "router.log").read_text())
    assert json.loads(result.output) == {
        "time": "2026-01-31T11:58:01.000Z",
        "level": "INFO",
        "process": "router",
        "logger": "baton.x",
        "request_id": "r1",
        "text": "routed",
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
        shown.terminate()
