"""Detached servers as real processes: start, failures, stop, and the records of servers that were killed."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from baton.deployment.local.detached import start as start_module
from baton.deployment.local.detached import stop as stop_module
from baton.deployment.local.detached.folder import NAME, ServerFolder, server_folders
from baton.deployment.local.detached.record import ServerRecord, read_record, write_record
from baton.deployment.local.detached.start import NameTaken, StartFailed, start_detached
from baton.deployment.local.detached.stop import NotRunning, StillRunning, stop_server
from tests.unit.deployment import detached_script

SCRIPT = Path(detached_script.__file__)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def folder(environment: dict[str, str]) -> Iterator[ServerFolder]:
    made = ServerFolder.named("tiny", environment)
    yield made
    if (pid := made.holder()) is not None:
        os.kill(pid, signal.SIGKILL)


def start(folder: ServerFolder, behaviour: str, environment: dict[str, str], shown: list[str] | None = None) -> int:
    folder.make()
    folder.log_dir.mkdir(exist_ok=True)
    argv = [sys.executable, str(SCRIPT), str(folder.path), behaviour]
    show = (shown if shown is not None else []).append
    return start_detached(folder, argv, folder.log_dir / "serve.log", environment, show)


def has_ended(pid: int) -> bool:
    """Whether a process has ended; a child of this process then is a zombie."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_server_goes_on_by_itself_and_is_stopped_by_name(folder: ServerFolder, environment: dict[str, str]) -> None:
    shown: list[str] = []
    pid = start(folder, "serves", environment, shown)
    assert shown == ["loading", "serving"]
    assert folder.holder() == pid
    assert os.getsid(pid) == pid  # no terminal's signals reach it
    assert "NOTIFY_SOCKET" in psutil.Process(pid).environ()
    record = folder.record()
    assert record is not None
    assert (record.state, record.model, record.port) == ("ready", "tiny", 7)
    assert server_folders(environment) == [folder]
    assert (folder.path.stat().st_mode & 0o777, folder.path.parents[1].stat().st_mode & 0o777) == (0o700, 0o700)
    with pytest.raises(NameTaken, match="a server named tiny runs already; stop it with `baton stop tiny`"):
        start(folder, "serves", environment)
    stopped = stop_server(folder, None)
    assert (stopped.pid, stopped.was_cut) == (pid, False)
    assert folder.holder() is None
    assert server_folders(environment) == []


@pytest.mark.parametrize(
    ("behaviour", "error", "status"),
    [
        ("fails", r"no model is there\nand none will be\nThe log is .*serve.log", 2),
        ("crashes", r"the server ended:\nan earlier line\nThe log is", -signal.SIGKILL),
    ],
)
def test_a_failed_start_raises_the_servers_own_error(
    folder: ServerFolder, environment: dict[str, str], behaviour: str, error: str, status: int
) -> None:
    folder.make()
    folder.log_dir.mkdir()
    (folder.log_dir / "serve.log").write_text("Error: of the life before\n")
    with pytest.raises(StartFailed, match=f"^{error}") as failed:
        start(folder, behaviour, environment)
    assert failed.value.status == status
    assert folder.holder() is None


def test_an_interrupted_start_leaves_no_server(folder: ServerFolder, environment: dict[str, str]) -> None:
    started: list[int] = []

    def interrupt() -> None:
        while (record := folder.record()) is None or not record.model or folder.holder() is None:
            pass
        started.append(folder.holder() or 0)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        start(folder, "loads", environment)
    thread.join()
    assert has_ended(started[0])
    assert server_folders(environment) == []


@pytest.mark.parametrize(("behaviour", "was_cut"), [("drains", True), ("hangs", True), ("serves", False)])
def test_the_time_out_cuts_requests_off(
    folder: ServerFolder,
    environment: dict[str, str],
    behaviour: str,
    was_cut: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stop_module, "CUT_TIMEOUT_S", 0.2 if behaviour == "hangs" else 60)
    start(folder, behaviour, environment)
    stopped = stop_server(folder, 0.2 if was_cut else 60)
    assert stopped.was_cut == was_cut
    assert has_ended(stopped.pid)
    assert folder.record() is None


def test_without_a_time_out_a_server_that_hangs_goes_on_and_the_error_names_the_remedy(
    folder: ServerFolder, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_module, "CUT_TIMEOUT_S", 0.2)
    pid = start(folder, "hangs", environment)
    with pytest.raises(StillRunning) as failed:
        stop_server(folder, None, end_margin_s=0.1)
    assert f"(process {pid})" in str(failed.value)
    assert f"has not ended within 0.2 s; `baton stop {folder.name} --force` ends it now" in str(failed.value)
    assert not has_ended(pid)
    assert stop_server(folder, 0.0).was_cut
    assert has_ended(pid)


def test_a_second_stop_without_a_time_out_cuts_nothing_off(folder: ServerFolder, environment: dict[str, str]) -> None:
    pid = start(folder, "drains", environment)  # which ends at the second signal
    for _ in range(2):
        with pytest.raises(StillRunning):
            stop_server(folder, None, end_margin_s=0.1)
    assert not has_ended(pid)
    stopped = stop_server(folder, 1.0)
    assert (stopped.pid, stopped.was_cut) == (pid, True)
    assert stopped.took_s >= 1  # the requests had all of the time


def test_stops_at_the_same_time_send_one_signal(
    folder: ServerFolder, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(folder, "drains", environment)  # which ends at the second signal
    record = folder.record()
    monkeypatch.setattr(ServerFolder, "record", lambda _: record)  # the server has not recorded yet that it stops
    for _ in range(2):
        with pytest.raises(StillRunning):
            stop_server(folder, None, end_margin_s=0.1)
    assert not has_ended(pid)
    assert stop_server(folder, 0.0).was_cut


def test_the_signal_of_an_earlier_process_with_the_same_id_does_not_count(
    folder: ServerFolder, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(folder, "serves", environment)
    monkeypatch.setattr(ServerFolder, "record", lambda _: None)  # the later server has not written it yet
    folder.signalled_path.write_text(f"{pid} 0")
    assert stop_server(folder, None, end_margin_s=60).pid == pid


def test_the_second_signal_is_sent_after_the_first_was_taken(
    folder: ServerFolder, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_module, "CUT_TIMEOUT_S", 60)
    start(folder, "drains", environment)
    stopped = stop_server(folder, 0.0)
    assert stopped.was_cut
    assert stopped.took_s < 30  # not by SIGKILL
    assert folder.record() is None


def test_a_killed_server_is_recognised_and_its_process_id_is_not_trusted(
    folder: ServerFolder, environment: dict[str, str]
) -> None:
    os.kill(pid := start(folder, "serves", environment), signal.SIGKILL)
    while not has_ended(pid):
        pass
    assert folder.holder() is None
    assert server_folders(environment) == [folder]  # its record is left
    with pytest.raises(NotRunning, match="tiny does not run"):
        stop_server(folder, None)
    assert start(folder, "serves", environment) == folder.holder()
    stop_server(folder, None)


def test_a_process_that_ends_before_it_is_stopped_does_not_pass_its_id_on(
    folder: ServerFolder, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends, and its id becomes another process's, between the look-up of the id and its use."""
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    try:
        ids = iter([other.pid, None])  # as the kernel would report them
        monkeypatch.setattr(ServerFolder, "holder", lambda _: next(ids))
        with pytest.raises(NotRunning, match="tiny has just ended"):
            stop_server(folder, None)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_damaged_records_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    record = ServerRecord(8000, "/log", 1.5, "ready", "m", "http://h")
    write_record(path, record)
    assert read_record(path) == record
    for text in ("", "[]", "{}", '{"port": "x", "log_path": "", "started_at_s": 0}', "[" * 100_000, '{"a": 1}'):
        path.write_text(text)
        assert read_record(path) is None


def test_other_files_in_the_directory_are_skipped(folder: ServerFolder, environment: dict[str, str]) -> None:
    folder.make()
    (folder.path.parent / "file").touch()
    (folder.path.parent / ".hidden").mkdir()
    (folder.path.parent / ".hidden" / "server.json").touch()
    assert server_folders(environment) == []


def test_names_are_single_path_components() -> None:
    assert all(NAME.fullmatch(name) for name in ("8000", "qwen-3.5_b", "a" * 64))
    assert not any(NAME.fullmatch(name) for name in ("", "..", ".x", "a/b", "a" * 65, "a b", "ä"))


def test_a_lost_report_is_found_in_the_record(
    folder: ServerFolder, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_module, "RECORD_PERIOD_S", 0.05)
    folder.make()  # with the record of a server that was killed
    write_record(folder.record_path, ServerRecord(7, "/log", 1.0, "ready", "killed", "http://h"))
    pid = start(folder, "is silent", environment)
    record = folder.record()
    assert record is not None
    assert (folder.holder(), record.model, record.state) == (pid, "tiny", "ready")
    stop_server(folder, None)


def test_the_error_is_the_last_one_in_the_log(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text("Error: old\n" + "x" * 5 + "\nError: new\n  more\n")
    assert start_module.error_in(log, len("Error: old\n")) == "new\n  more"
    log.write_text("\n".join(map(str, range(100))))
    assert start_module.error_in(log, 0) == "\n".join(["the server ended:", *map(str, range(80, 100))])
    assert start_module.error_in(log, 1 << 20).endswith("\n99")  # the log was longer, and has been emptied since
    assert "cannot be read" in start_module.error_in(tmp_path / "none", 0)
