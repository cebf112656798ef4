"""`baton fetch` of the bundled model and from a small hub."""

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

import pytest
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
    "onnx/config.json": b"not wanted",
    "1_Pooling/config.json": b"{}",
    "small-Q8_0.gguf": b"not wanted",
    "Q4_K_M/small-Q4_K_M.gguf": b"not wanted",
}
WANTED = {name for name, content in FILES.items() if content != b"not wanted"}


def fetch(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fetch", *arguments])


def names(directory: Path) -> set[str]:
    found = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    return {str(each) for each in found if not each.parts[0].startswith(".")}


def test_the_bundled_model_is_copied_once(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "m"
    assert "downloaded" in fetch("bundled", str(directory)).output
    assert names(directory) == names(BUNDLED)
    assert (directory / "model.safetensors").read_bytes() == (BUNDLED / "model.safetensors").read_bytes()
    (directory / "config.json").write_text("mine")
    assert "is already in" in fetch("bundled", str(directory)).output
    assert "is already in" in fetch("bundled", str(directory), "--without-weights").output
    assert (directory / "config.json").read_text() == "mine"


def test_without_weights_a_router_has_all_it_needs(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    fetch("bundled", str(directory), "--without-weights")
    assert names(directory) == names(BUNDLED) - {"model.safetensors"}
    assert "downloaded" in fetch("bundled", str(directory)).output
    assert names(directory) == names(BUNDLED)


def test_an_interrupted_download_is_restarted(tmp_path: Path) -> None:
    """Only a complete model is marked as complete."""
    (tmp_path / "model.safetensors").write_bytes(b"half")
    fetch("bundled", str(tmp_path))
    assert (tmp_path / "model.safetensors").read_bytes() == (BUNDLED / "model.safetensors").read_bytes()


def test_a_second_fetch_waits_for_the_first(tmp_path: Path) -> None:
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


def test_wait_downloads_and_writes_nothing(tmp_path: Path) -> None:
    """Not even a directory: the volume may be read-only."""
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


def test_no_wait_for_a_model_whose_directory_has_another(tmp_path: Path) -> None:
    fetch("bundled", str(tmp_path / "m"))
    refused = fetch("a/b", str(tmp_path / "m"), "--revision", "v1", "--wait")
    assert refused.exit_code == 1
    assert "has bundled; give another directory for a/b@v1" in " ".join(refused.output.split())


def test_a_gguf_file_of_the_hub_is_fetched_alone(tmp_path: Path) -> None:
    with hub() as server:
        run = fetch_from(server, tmp_path, "a/b:Q4_K_M", str(tmp_path / "m"))
    file = tmp_path / "m" / "Q4_K_M" / "small-Q4_K_M.gguf"
    assert f"the model is {file}" in run.stdout
    assert names(tmp_path / "m") == {"Q4_K_M/small-Q4_K_M.gguf"}


def test_a_quantization_that_is_not_there_is_not_tried_again(tmp_path: Path) -> None:
    with hub() as server:
        run = fetch_from(server, tmp_path, "a/b:Q2_K", str(tmp_path / "m"))
    assert "no GGUF model for Q2_K" in " ".join(run.stderr.split())
    assert "tries left" not in run.stderr


def test_a_gguf_file_is_not_fetched_without_weights(tmp_path: Path) -> None:
    result = fetch("a/b:Q4_K_M", str(tmp_path / "m"), "--without-weights")
    assert result.exit_code == 2
    assert "a GGUF file has the tokenizer and the config in it" in " ".join(result.output.split())


@pytest.mark.slow
def test_a_model_without_weights_does_not_end_the_wait_for_weights(tmp_path: Path) -> None:
    fetch("bundled", str(tmp_path / "m"), "--without-weights")
    assert "is already in" in fetch("bundled", str(tmp_path / "m"), "--wait", "--without-weights").output
    command = (sys.executable, "-m", "baton", "fetch", "bundled", str(tmp_path / "m"), "--wait")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=unbuffered()) as process:
        assert process.stdout is not None
        assert "waiting" in process.stdout.readline()
        fetch("bundled", str(tmp_path / "m"))
        assert "is already in" in process.stdout.read()


def test_an_invalid_model_name_is_refused(tmp_path: Path) -> None:
    result = fetch("qwen", str(tmp_path / "m"))
    assert result.exit_code == 2
    assert "qwen is neither a hub id" in result.output


def unbuffered(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}


class Hub(BaseHTTPRequestHandler):
    """Serves one model like the hub, except for requests that its server has to fail."""

    def do_GET(self) -> None:  # named by the library
        """Send the list of a model's files, or one of them."""
        path = self.path.partition("?")[0]
        assert isinstance(self.server, HubServer)
        self.server.paths.append(path)
        if self.server.fails(path):
            self.send_error(self.server.status)
        elif path == "/api/models/a/b/revision/none":
            self.send_response(404)
            self.send_header("x-error-code", "RevisionNotFound")
            self.send_header("content-length", "0")
            self.end_headers()
        elif path.startswith("/api/models/a/b/tree/"):
            tree = [{"type": "file", "path": name, "size": len(data), "oid": oid(data)} for name, data in FILES.items()]
            self._respond(json.dumps(tree).encode())
        elif path.startswith("/api/models/a/b"):
            siblings = [{"rfilename": name} for name in FILES]
            self._respond(json.dumps({"id": "a/b", "sha": COMMIT, "siblings": siblings}).encode())
        else:
            self._respond(FILES.get(path.removeprefix(f"/a/b/resolve/{COMMIT}/")))

    do_HEAD = do_GET  # noqa: N815  # named by the library

    def _respond(self, data: bytes | None) -> None:
        self.send_response(404 if data is None else 200)
        self.send_header("content-length", str(len(data or b"")))
        self.send_header("x-repo-commit", COMMIT)
        self.send_header("etag", f'"{oid(data or b"")}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data or b"")

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


class HubServer(ThreadingHTTPServer):
    """A hub that records requested paths; `failures` maps path prefixes to the number of requests to fail."""

    def __init__(self, failures: dict[str, int], status: int) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.paths: list[str] = []
        self.status = status
        self._failures = failures

    @property
    def url(self) -> str:
        """URL for clients."""
        return f"http://127.0.0.1:{self.server_port}"

    def fails(self, path: str) -> bool:
        """Return whether this request has to fail."""
        for prefix, left in self._failures.items():
            if path.startswith(prefix) and left:
                self._failures[prefix] -= 1
                return True
        return False


@contextmanager
def hub(failures: dict[str, int] | None = None, status: int = 500) -> Iterator[HubServer]:
    """Yield a running hub."""
    with HubServer(failures or {}, status) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def fetch_from(server: HubServer, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process: the hub's client reads its environment when it is imported."""
    env = unbuffered(HF_ENDPOINT=server.url, HF_HOME=str(tmp_path / "home"), HF_HUB_DISABLE_XET="1")
    env.pop("HF_HUB_OFFLINE", None)
    command = (sys.executable, "-m", "baton", "fetch", *arguments)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_files_that_baton_does_not_read_are_not_downloaded(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "b"
    with hub() as server:
        for flags, expected in (
            (["--without-weights"], WANTED - {"model.safetensors"}),
            ([], WANTED),
        ):
            run = fetch_from(server, tmp_path, "a/b", str(directory), *flags)
            assert run.returncode == 0, run.stderr
            assert names(directory) == expected
    again = fetch_from(server, tmp_path, "a/b", str(directory))
    assert "is already in" in again.stdout  # and the hub gets no request


def test_a_revision_is_downloaded_at_its_commit_and_not_mixed_with_another(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    with hub() as server:
        run = fetch_from(server, tmp_path, "a/b", str(directory), "--revision=v1")
        assert run.returncode == 0, run.stderr
        assert f"downloaded a/b@v1 to {directory}" in run.stdout
        assert names(directory) == WANTED
        assert "/api/models/a/b/revision/v1" in server.paths
        assert f"/a/b/resolve/{COMMIT}/config.json" in server.paths
    assert "a/b@v1 is already in" in fetch("a/b", str(directory), "--revision=v1").output
    for wanted in ("--revision=v2",), ():
        other = fetch("a/b", str(directory), *wanted)
        assert other.exit_code == 1
        assert f"{directory} has a/b@v1; give another directory for a/b" in other.output


def test_an_unknown_revision_is_named_and_not_retried(tmp_path: Path) -> None:
    with hub() as server:
        run = fetch_from(server, tmp_path, "a/b", str(tmp_path / "m"), "--revision=none")
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "Error: a/b has no branch, tag or commit none"
    result = fetch("bundled", str(tmp_path / "bundled"), "--revision=v1")
    assert "--revision is for models of the hub, not for `bundled`" in result.output


@pytest.mark.slow
def test_a_failing_hub_is_retried(tmp_path: Path) -> None:
    with hub({"/api/models/a/b": 1}) as server:
        run = fetch_from(server, tmp_path, "a/b", str(tmp_path / "m"), "--tries=2")
    assert run.returncode == 0, run.stderr
    assert "tries left: 1" in run.stderr
    assert names(tmp_path / "m") == WANTED


def test_a_refusal_by_the_hub_is_not_retried(tmp_path: Path) -> None:
    with hub() as server:
        run = fetch_from(server, tmp_path, "a/none", str(tmp_path / "m"))
    assert run.returncode == 1
    assert "could not be downloaded" in run.stderr
    assert "tries left" not in run.stderr
    assert len([path for path in server.paths if path.startswith("/api/models/a/none")]) == 1


def test_a_partial_download_never_counts_as_complete(tmp_path: Path) -> None:
    """If it cannot list the model's files, the hub's client accepts any directory that is not empty."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    with hub({"/api/models/a/b/tree/": 99}, status=403) as server:
        run = fetch_from(server, tmp_path, "a/b", str(tmp_path / "m"), "--tries=1")
    assert run.returncode == 1
    assert "could not be downloaded from the hub" in run.stderr
    assert not (tmp_path / "m" / ".baton-fetched").exists()
