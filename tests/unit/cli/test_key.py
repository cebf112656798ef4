"""`baton key`, and the key that other commands send."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml
from click.testing import CliRunner, Result

from baton.__main__ import main
from baton.cli.options.model_source import find_checkpoint
from baton.deployment.local.cluster_config import load_settings
from baton.deployment.local.cluster_plan import plan_cluster
from baton.deployment.local.machine import this_machine
from baton.deployment.local.ports import free_ports
from baton.router.auth.api_key import KEY_PREFIX, digest_of, hidden
from baton.router.auth.keys_file import read_keys
from baton.rpc.router_client import connect


def run(*arguments: str, **environ: str) -> Result:
    return CliRunner(env=dict(environ)).invoke(main, list(arguments))


def test_a_new_key_matches_its_entry() -> None:
    result = run("key", "new", "--name", "a", "--max-inflight", "3", "--expires-in-days", "1", "--cache-salt", "team")
    assert result.exit_code == 0, result.output
    key, entry = result.stdout.split("\n", 1)
    [read] = read_keys(f"keys:\n{entry}".encode(), "entry")
    assert key.startswith(KEY_PREFIX)
    assert len(key) == len(KEY_PREFIX) + 43  # 256 bits in Base64
    assert (read.name, read.digest, read.max_inflight) == ("a", digest_of(key.encode()), 3)
    assert (read.cache_scope, read.priority) == ("team", 0)
    assert read.expires_s is not None
    assert set(yaml.safe_load(entry)[0]) == {"name", "sha256", "max_inflight", "cache_salt", "expires"}
    assert key not in entry
    assert run("key", "new", "--name", "a").stdout.split("\n", 1)[0] != key


def test_an_admin_key_has_an_entry_that_says_so() -> None:
    _, entry = run("key", "new", "--name", "operator", "--admin").stdout.split("\n", 1)
    assert yaml.safe_load(entry)[0]["admin"] is True
    [read] = read_keys(f"keys:\n{entry}".encode(), "entry")
    assert read.is_admin


def test_invalid_names_are_refused() -> None:
    result = run("key", "new", "--name", "a b")
    assert result.exit_code == 2
    assert "name: must be 1 to 128 visible ASCII characters" in result.output


def test_a_keys_file_is_checked(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    entries = [run("key", "new", "--name", name).stdout.split("\n", 1)[1] for name in ("a", "b")]
    file.write_text("keys:\n" + "".join(entries))
    result = run("key", "check", str(file))
    assert (result.exit_code, result.output) == (0, "a\nb\n")
    file.write_text("keys:\n" + entries[0] * 2)
    result = run("key", "check", str(file))
    assert result.exit_code == 1
    assert "keys[1].name: must not be the same as in keys[0]" in result.output


@pytest.mark.parametrize("command", ["router", "serve"])
def test_an_empty_key_is_an_error(command: str) -> None:
    for arguments, environ in (
        (("--api-key", ""), {}),
        (("--api-key", " , "), {}),
        ((), {"BATON_API_KEY": ""}),
    ):
        more = ("--model", "/nowhere") if command == "router" else ("--port", str(free_ports("127.0.0.1", 1)[0]))
        result = run(command, *more, *arguments, **environ)
        assert result.exit_code == 2, result.output
        assert "api_key: must not be empty" in result.output


def test_protection_without_a_key_is_refused() -> None:
    result = run("router", "--model", "/nowhere", "--protect-operations")
    assert result.exit_code == 2
    assert "protect_operations: requires api_key or api_keys_file" in result.output


def test_commands_send_the_key() -> None:
    shown = [
        client.headers.get("authorization") for client in (connect("http://a", 1.0), connect("http://a", 1.0, "k, l"))
    ]
    assert shown == [None, "Bearer k"]


def test_the_key_may_come_from_the_environment() -> None:
    with listening() as (url, seen):
        for arguments, environ in (
            ((), {"BATON_API_KEY": "b", "OPENAI_API_KEY": "o"}),
            ((), {"BATON_API_KEY": "", "OPENAI_API_KEY": "o"}),
            (("--api-key", "f"), {"BATON_API_KEY": "b"}),
            ((), {"BATON_API_KEY": "", "OPENAI_API_KEY": ""}),
        ):
            assert run("status", "--once", "--url", url, *arguments, **environ).exit_code == 0
    assert seen == ["Bearer b", "Bearer o", "Bearer f", None]
    assert "BATON_API_KEY" in run("chat", "--help").output


def test_a_clusters_processes_get_only_the_keys_digest() -> None:
    settings = load_settings(None, {"api_key": "sk-secret,sk-other"})
    plan = plan_cluster(settings, find_checkpoint(settings.cluster, {}), this_machine())
    router, *workers = [spec.argv for spec in plan.specs(Path("/logs"))]
    assert f"--api-key={hidden('sk-secret')},{hidden('sk-other')}" in router
    assert "sk-" not in repr((router, workers, plan))


@contextmanager
def listening() -> Iterator[tuple[str, list[str | None]]]:
    """Yield the URL of a server without workers, and the keys that it receives."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        """Records the key of each request."""

        def do_GET(self) -> None:
            seen.append(self.headers["authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"workers": []}')

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()
