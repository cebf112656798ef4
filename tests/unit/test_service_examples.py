"""The units of systemd and the Compose file in examples/: what systemd and the commands themselves make of them."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from baton.__main__ import main
from baton.deployment.local.cluster_config import load_settings
from baton.worker.config import WorkerConfig

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "examples" / "systemd").glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "compose" / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BATON = ("router", "prefill", "decode")


def drain_timeout_s() -> float:
    return float(WorkerConfig.__dataclass_fields__["drain_timeout_s"].default)


def check_words(line: str) -> None:
    """Check that a command line of `baton` has a command and only options that it has."""
    name, *words = line.split()[1:]
    command = main.commands[name]
    context = click.Context(main)
    _, command, _ = main.resolve_command(context, [name])
    assert command is not None
    known = {flag for parameter in command.params for flag in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name.replace("@", "@one")
    program = str(Path(sys.executable).with_name("baton"))
    copy.write_text(unit.read_text(encoding="utf-8").replace("/opt/baton/bin/baton", program))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_with_time_to_drain_and_little_rights(unit: Path) -> None:
    text = unit.read_text(encoding="utf-8")
    settings = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"\w+=", line))
    check_words(settings["ExecStart"].replace("/opt/baton/bin/", ""))
    assert float(settings["TimeoutStopSec"]) > drain_timeout_s() + 5
    assert (settings["KillMode"], settings["DynamicUser"], settings["CapabilityBoundingSet"]) == ("mixed", "yes", "")
    assert settings["Type"] == ("notify" if unit.name == "baton.service" else "exec")


def test_the_options_of_the_unit_are_those_of_serve() -> None:
    settings = load_settings(ROOT / "examples" / "systemd" / "baton.yaml", {})
    assert settings.cluster.port == 8000
    assert settings.cluster.max_log_bytes == 64 << 20


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_has_no_rights_and_a_health_check(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert not service["user"].startswith("0")
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    assert "cluster" in service["networks"]
    assert COMPOSE["networks"]["cluster"] == {"internal": True}


@pytest.mark.parametrize("name", BATON)
def test_a_service_runs_a_command_and_has_time_to_drain(name: str) -> None:
    service = SERVICES[name]
    *shell, script = service["command"]
    assert shell == ["sh", "-c"]
    assert script.startswith("exec baton ")
    check_words(script.removeprefix("exec "))
    assert float(service["stop_grace_period"].removesuffix("s")) > drain_timeout_s() + 5
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert service["image"] == f"${{BATON_IMAGE:-baton:{version}-cpu}}"


def test_the_registry_is_the_image_of_the_chart() -> None:
    values = yaml.safe_load((ROOT / "helm" / "baton" / "values.yaml").read_text(encoding="utf-8"))
    image = values["redis"]["image"]
    assert SERVICES["redis"]["image"] == f"{image['repository']}:{image['tag']}"


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode != 0,
    reason="Docker Compose is not installed",
)
def test_docker_compose_accepts_the_file() -> None:
    argv = ["docker", "compose", "--file", ROOT / "examples" / "compose" / "compose.yaml", "config", "--quiet"]
    done = subprocess.run(
        argv, env={"PATH": "/usr/bin:/usr/local/bin", "BATON_MODEL": "/"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
