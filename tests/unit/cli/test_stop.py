"""Which servers `baton stop` takes, and what `--detach` refuses; servers that run are in tests/integration/http."""

import json
import signal
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from click.testing import CliRunner, Result

from baton.__main__ import main
from baton.cli import stop as stop_command
from baton.cli.options import detach as detach_options
from baton.deployment.local.detached.folder import ServerFolder
from baton.deployment.local.detached.record import ServerRecord, write_record
from baton.deployment.local.detached.start import StartFailed
from baton.deployment.local.detached.stop import NotRunning, StillRunning, StoppedServer


def run(tmp_path: Path, *words: str) -> Result:
    return CliRunner().invoke(main, words, env={"XDG_STATE_HOME": str(tmp_path)})


def killed(tmp_path: Path, name: str, port: int) -> ServerFolder:
    """Return a server that was killed: it has a record, and no process holds its lock."""
    folder = ServerFolder.named(name, {"XDG_STATE_HOME": str(tmp_path)})
    folder.make()
    write_record(folder.record_path, ServerRecord(port, f"/logs/{name}", 0.0, "ready", "m", f"http://127.0.0.1:{port}"))
    return folder


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("serve", "--name=x"), "--name needs --detach: only detached servers have names"),
        (("serve", "--detach", "--name=../x"), "--name: '../x' is not allowed; it must be 1 to 64 letters"),
        (("serve", "--detach", "--ray"), "--detach does not work with --ray; start it as a service of systemd"),
        (("stop", "none"), "none does not run; `baton ps` lists all detached servers"),
        (("stop", "../none"), "NAME: '../none' is not allowed; it must be 1 to 64 letters"),
        (("stop", "a", "--force", "--timeout-s=1"), "give one of --timeout-s and --force"),
        (("stop", "a", "--all"), "give one of NAME, --port and --all"),
        (("stop", "--port=9"), "no detached server has port 9; `baton ps` lists all"),
        (("stop", "x", "--timeout-s=nan"), "nan is not a number of seconds"),
        (("stop", "x", "--timeout-s=inf"), "inf is not in the range"),
        (("stop",), "no detached server runs; Ctrl-C or SIGTERM stops others"),
    ],
)
def test_errors_name_what_to_do(words: tuple[str, ...], error: str, tmp_path: Path) -> None:
    result = run(tmp_path, *words)
    assert result.exit_code in (1, 2)
    assert error in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_killed_server_is_listed_until_it_is_stopped(tmp_path: Path) -> None:
    killed(tmp_path, "qwen", 8001)
    killed(tmp_path, "gemma", 8002)
    listed = run(tmp_path, "ps").output.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [
        ["gemma", "killed", "http://127.0.0.1:8002"],
        ["qwen", "killed", "http://127.0.0.1:8001"],
    ]
    assert listed[0].index("LOG") == listed[1].index("/logs/gemma") == listed[2].index("/logs/qwen")
    stopped = run(tmp_path, "stop", "--port", "8001")
    assert stopped.output == "Error: qwen does not run: it was killed. Its log is /logs/qwen\n"
    assert [each["name"] for each in json.loads(run(tmp_path, "ps", "--json").output)] == ["gemma"]
    everything = run(tmp_path, "stop", "--all")
    assert (everything.exit_code, everything.output) == (0, "No detached server runs\n")


def test_all_servers_are_stopped_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gemma", "qwen"):
        killed(tmp_path, name, 8001)
    together = Barrier(2, timeout=30)

    def stop(folder: ServerFolder, timeout_s: float) -> StoppedServer:
        together.wait()  # breaks unless both are being stopped
        if folder.name == "qwen":
            raise StillRunning("qwen has not ended")
        return StoppedServer(7, False, timeout_s)

    monkeypatch.setattr(ServerFolder, "holder", lambda _: 7)
    monkeypatch.setattr(stop_command, "stop_server", stop)
    stopped = run(tmp_path, "stop", "--all", "--timeout-s=9")
    assert stopped.exit_code == 1
    assert stopped.output == (
        "Stopped gemma (process 7), which served m at http://127.0.0.1:8001, in 9.0 s\nError: qwen has not ended\n"
    )


def test_a_defect_is_not_hidden_by_the_thread_of_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(tmp_path, "qwen", 8001)

    def stop(*_: object) -> None:
        raise AssertionError("a defect")

    monkeypatch.setattr(stop_command, "stop_server", stop)
    assert isinstance(run(tmp_path, "stop", "qwen").exception, AssertionError)


def test_a_server_that_ends_meanwhile_was_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed(tmp_path, "qwen", 8001)

    def end(*_: object) -> None:
        folder.forget()  # as an orderly shutdown does
        raise NotRunning("qwen has just ended")

    monkeypatch.setattr(stop_command, "stop_server", end)
    stopped = run(tmp_path, "stop", "qwen")
    assert stopped.output == "Error: qwen has just ended; `baton ps` lists all detached servers\n"


def test_the_record_of_a_new_server_with_the_name_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed(tmp_path, "qwen", 8001)

    def replaced(*_: object) -> None:
        monkeypatch.setattr(ServerFolder, "holder", lambda _: 7)
        raise NotRunning("qwen has just ended")

    monkeypatch.setattr(stop_command, "stop_server", replaced)
    assert "was killed" not in run(tmp_path, "stop", "qwen").output
    assert folder.record() is not None


def test_the_status_of_a_start_is_not_read_as_markup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*arguments: Any) -> int:
        arguments[-1]("both-0: ended [/INST]; restarting")
        raise StartFailed("no model", 3)

    monkeypatch.setattr(detach_options, "start_detached", start)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the tests keep their handlers
    result = run(tmp_path, "serve", "--detach", "--name=x")
    assert (result.exit_code, result.output.splitlines()[-1]) == (3, "Error: no model")
