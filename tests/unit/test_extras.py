"""Without the optional packages: features that work, and one-line errors for the others."""

import subprocess
import sys
from dataclasses import replace
from importlib import invalidate_caches
from pathlib import Path

import pytest

from baton.deployment.kubernetes import budget_reader
from baton.deployment.local import redis_server
from baton.deployment.local.ports import free_ports
from baton.deployment.local.redis_server import NoRedisServer, PrivateRedis, find_redis_server
from baton.doctor.finding import Level
from baton.doctor.packages import check_extras
from baton.extras import NIXL, OPTIONAL_PACKAGES, RAY, MissingExtra

# Runs a Baton command as if no optional package were installed.
BASE_ONLY = f"""
import sys
for name in {[package.module for package in OPTIONAL_PACKAGES]!r} + ["triton", "nixl_ep"]:
    sys.modules[name] = None
"""
IMPORT_ALL = """
from importlib import import_module
from pkgutil import iter_modules
import baton.cli
names = [f"baton.cli.{module.name}" for module in iter_modules(baton.cli.__path__)]
for name in [*names, "baton.prefill_worker.__main__", "baton.decode_worker.__main__", "baton.router.__main__"]:
    import_module(name)
print("imported", len(names))
"""
SERVE = "from baton.__main__ import main; main(prog_name='baton')"


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python process without the optional packages."""
    argv = [sys.executable, "-c", BASE_ONLY + script, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def test_every_command_and_process_imports_without_optional_packages() -> None:
    result = run(IMPORT_ALL)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("imported")


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--ray"], 'baton serve --ray needs ray, which is not installed: pip install "baton-serve[ray]"'),
        (
            ["--transport", "nixl"],
            '--transport nixl needs nixl, which is not installed: pip install "baton-serve[nixl]"',
        ),
        (
            ["--otlp-traces-endpoint", "http://127.0.0.1:4318"],
            "--otlp-traces-endpoint needs opentelemetry-exporter-otlp-proto-http, which is not installed: "
            'pip install "baton-serve[tracing]"',
        ),
    ],
)
def test_an_option_whose_package_is_missing_ends_with_one_line(flags: list[str], line: str) -> None:
    [port] = free_ports("127.0.0.1", 1)
    result = run(SERVE, "serve", "--port", str(port), *flags)
    assert result.returncode != 0
    assert result.stderr.splitlines()[-1] == f"Error: {line}"
    assert "Traceback" not in result.stderr


def test_a_kubernetes_budget_needs_the_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    (tmp_path / "token").touch()
    settings: object = None  # not read before the missing client is reported
    with pytest.raises(ValueError, match=r'pip install "baton-serve\[kubernetes\]"'):
        budget_reader.open_budget(settings, settings, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)  # type: ignore[arg-type]


def test_without_a_redis_server_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = find_redis_server()
    assert found is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    packaged = find_redis_server()
    assert packaged is not None
    assert packaged.name == "valkey-server"

    def no_files(name: str) -> None:
        return None

    monkeypatch.setattr(redis_server, "files", no_files)
    with pytest.raises(NoRedisServer, match=r'pip install "baton-serve\[ray\]", or name a Redis with --registry'):
        PrivateRedis(tmp_path / "redis.log")


def test_a_folder_with_a_packages_name_is_not_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = replace(NIXL, module="a_package_for_this_test")
    folder = tmp_path / package.module
    folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not package.is_installed
    (folder / "__init__.py").touch()
    invalidate_caches()
    assert package.is_installed


def test_a_missing_package_is_an_error_that_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    RAY.require("this test")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match="this test needs ray") as caught:
        RAY.require("this test")
    assert "\n" not in str(caught.value)


def test_the_doctor_lists_missing_packages_with_their_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nixl", None)
    [finding] = [each for each in check_extras() if "nixl" in each.found]
    assert finding.level is Level.OK
    assert NIXL.purpose in finding.found
    assert NIXL.command in finding.found
    for package in OPTIONAL_PACKAGES:
        monkeypatch.setitem(sys.modules, package.module, sys)
    assert [each.check for each in check_extras()] == ["extras"]
