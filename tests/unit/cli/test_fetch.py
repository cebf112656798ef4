"""`baton fetch`, of the bundled model and of a small hub's."""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from click.testing import CliRunner, Result

from baton.__main__ import main
from baton.cli.options.model_source import BUNDLED

COMMIT = "5" * 40
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "README.md": b"not wanted",
    "original/consolidated.safetensors": b"not wanted",
}


def fetch(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fetch", *arguments])


def names(directory: Path) -> set[str]:
    return {each.name for each in directory.iterdir() if not each.name.startswith(".")}


def test_the_bundled_model_is_put_there_once(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "m"
    assert "downloaded" in fetch("bundled", str(directory)).output
    assert names(directory) == names(BUNDLED)
    assert (directory / "model.safetensors").read_bytes() == (BUNDLED / "model.safetensors").read_bytes()
    (directory / "config.json").write_text("mine")
    assert "is already in" in fetch("bundled", str(directory)).output
    assert "is already in" in fetch("bundled", str(directory), "--without-weights").output
    assert (directory / "config.json").read_text() == "mine"


def test_without_weights_there_is_what_a_router_needs(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    fetch("bundled", str(directory), "--without-weights")
    assert names(directory) == names(BUNDLED) - {"model.safetensors"}
    assert "downloaded" in fetch("bundled", str(directory)).output
    assert names(directory) == names(BUNDLED)


def test_what_was_broken_off_is_begun_anew(tmp_path: Path) -> None:
    """Only what is complete is marked so."""
    (tmp_path / "model.safetensors").write_bytes(b"half")
    fetch("bundled", str(tmp_path))
    assert (tmp_path / "model.safetensors").read_bytes() == (BUNDLED / "model.safetensors").read_bytes()


def test_who_comes_second_waits(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "baton", "fetch", "bundled", str(tmp_path / "m"))
    with (tmp_path / ".m.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered()) as process:
            assert process.stdout is not None
            assert "waiting" in process.stdout.readline()
            assert names(tmp_path / "m") == set()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert "downloaded" in process.stdout.read()
    assert process.returncode == 0


def test_who_only_waits_fetches_nothing_and_writes_nothing(tmp_path: Path) -> None:
    """Not even a directory: the volume may be one that it may only read."""
    command = (sys.executable, "-m", "baton", "fetch", "bundled", str(tmp_path / "m"), "--wait")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered()) as process:
        assert process.stdout is not None
        assert "waiting for another process to download bundled to" in process.stdout.readline()
        assert list(tmp_path.iterdir()) == []
        assert "downloaded" in fetch("bundled", str(tmp_path / "m")).output
        assert "is already in" in process.stdout.read()
    assert process.returncode == 0
    again = fetch("bundled", str(tmp_path / "m"), "--wait")
    assert "waiting" not in again.output


def test_a_routers_part_is_not_enough_for_a_worker_that_waits(tmp_path: Path) -> None:
    fetch("bundled", str(tmp_path / "m"), "--without-weights")
    assert "is already in" in fetch("bundled", str(tmp_path / "m"), "--wait", "--without-weights").output
    command = (sys.executable, "-m", "baton", "fetch", "bundled", str(tmp_path / "m"), "--wait")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered()) as process:
        assert process.stdout is not None
        assert "waiting" in process.stdout.readline()
        fetch("bundled", str(tmp_path / "m"))
        assert "is already in" in process.stdout.read()


def test_a_word_that_is_no_model_is_told(tmp_path: Path) -> None:
    result = fetch("qwen", str(tmp_path / "m"))
    assert result.exit_code == 2
    assert "qwen is neither a hub id" in result.output


def unbuffered(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does, for one model, but for the requests that its server has to fail."""

    def do_GET(self) -> None:  # the library's name
        """A model's files, or one of them."""
        path = self.path.partition("?")[0]
        assert isinstance(self.server, HubServer)
        self.server.asked.append(path)
        if self.server.fails(path):
            self.send_error(self.server.status)
        elif path.startswith("/api/models/a/b/tree/"):
            tree = [{"type": "file", "path": name, "size": len(data), "oid": oid(data)} for name, data in FILES.items()]
            self._answer(json.dumps(tree).encode())
        elif path.startswith("/api/models/a/b"):
            siblings = [{"rfilename": name} for name in FILES]
            self._answer(json.dumps({"id": "a/b", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            self._answer(FILES.get(path.removeprefix(f"/a/b/resolve/{COMMIT}/")))

    do_HEAD = do_GET  # noqa: N815  # the library's name

    def _answer(self, data: bytes | None) -> None:
        self.send_response(404 if data is None else 200)
        self.send_header("content-length", str(len(data or b"")))
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", f'"{oid(data or b"")}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data or b"")

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


class HubServer(ThreadingHTTPServer):
    """Owns what was asked, and what is to fail: paths that begin so, so many times each."""

    def __init__(self, failures: dict[str, int], status: int) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.asked: list[str] = []
        self.status = status
        self._failures = failures

    @property
    def url(self) -> str:
        """As clients have it."""
        return f"http://127.0.0.1:{self.server_port}"

    def fails(self, path: str) -> bool:
        """Whether this request is one of those."""
        for prefix, left in self._failures.items():
            if path.startswith(prefix) and left:
                self._failures[prefix] -= 1
                return True
        return False


@contextmanager
def hub(failures: dict[str, int] | None = None, status: int = 500) -> Iterator[HubServer]:
    """One that runs."""
    with HubServer(failures or {}, status) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def fetch_from(server: HubServer, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a process: the hub's client reads its environment when it is imported."""
    env = unbuffered(HF_ENDPOINT=server.url, HF_HOME=str(tmp_path / "home"), HF_HUB_DISABLE_XET="1")
    env.pop("HF_HUB_OFFLINE", None)
    command = (sys.executable, "-m", "baton", "fetch", *arguments)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_hubs_model_comes_without_what_nobody_reads(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    with hub() as server:
        for flags, expected in (
            (["--without-weights"], {"config.json", "tokenizer.json"}),
            ([], {"config.json", "tokenizer.json", "model.safetensors"}),
        ):
            run = fetch_from(server, tmp_path, "a/b", str(directory), *flags)
            assert run.returncode == 0, run.stderr
            assert names(directory) == expected
    again = fetch_from(server, tmp_path, "a/b", str(directory))
    assert "is already in" in again.stdout  # and nobody is asked


def test_a_hub_that_fails_is_asked_again(tmp_path: Path) -> None:
    with hub({"/api/models/a/b": 1}) as server:
        run = fetch_from(server, tmp_path, "a/b", str(tmp_path / "m"), "--tries=2")
    assert run.returncode == 0, run.stderr
    assert "tries left: 1" in run.stderr
    assert names(tmp_path / "m") == {"config.json", "tokenizer.json", "model.safetensors"}


def test_what_the_hub_refuses_is_not_asked_again(tmp_path: Path) -> None:
    with hub() as server:
        run = fetch_from(server, tmp_path, "a/none", str(tmp_path / "m"))
    assert run.returncode == 1
    assert "could not be downloaded" in run.stderr
    assert "tries left" not in run.stderr
    assert len([path for path in server.asked if path.startswith("/api/models/a/none")]) == 1


def test_a_part_is_never_taken_for_the_whole(tmp_path: Path) -> None:
    """The hub's client is content with a directory that has something in it, once it cannot list the model's files."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    with hub({"/api/models/a/b/tree/": 99}, status=403) as server:
        run = fetch_from(server, tmp_path, "a/b", str(tmp_path / "m"), "--tries=1")
    assert run.returncode == 1
    assert "could not be downloaded from the hub" in run.stderr
    assert not (tmp_path / "m" / ".baton-fetched").exists()
