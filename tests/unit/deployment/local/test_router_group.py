"""Several router processes: how they are requested, and the options of each."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from baton.deployment.local.cluster_config import load_settings
from baton.deployment.local.cluster_plan import plan_cluster
from baton.deployment.local.ports import PortInUse, check_port
from baton.router.__main__ import main
from baton.router.config import RouterConfig
from baton.router.http.shared_socket import shared_socket
from baton.settings.config_file import load
from baton.settings.flags import flags_of
from baton.settings.values import OptionError
from tests.unit.deployment.local.test_cluster_config import CHECKPOINT, MACHINE

HOST = "127.0.0.1"


def router_argv(**flags: object) -> tuple[str, ...]:
    """Return the command line of a planned cluster's router."""
    plan = plan_cluster(load_settings(None, flags), CHECKPOINT, MACHINE)
    return plan.specs(Path("/logs"))[0].argv


def test_a_cluster_runs_one_router_or_a_group() -> None:
    one = router_argv()
    assert one[3:5] == ("baton.router", "--log-level=info")
    assert not any(word.startswith("--processes") for word in one)
    several = router_argv(router_processes="3")
    assert several[3:6] == ("baton", "router", "--log-level=info")
    assert "--processes=3" in several


def test_a_router_is_watched_by_the_supervisor_that_starts_it() -> None:
    def timeouts(**flags: object) -> list[float]:
        plan = plan_cluster(load_settings(None, flags), CHECKPOINT, MACHINE)
        return [spec.heartbeat_timeout_s for spec in plan.specs(Path("/logs"))]

    assert timeouts() == [5, 0, 0]
    assert timeouts(heartbeat_timeout_s="12.5") == [12.5, 0, 0]
    assert timeouts(heartbeat_timeout_s="0") == [0, 0, 0]
    assert timeouts(router_processes="3") == [0, 0, 0], "their parent watches them"
    with pytest.raises(OptionError, match="heartbeat_timeout_s: must be 0 or at least 1"):
        RouterConfig(model="/models/tiny", heartbeat_timeout_s=0.5)


def test_router_processes_must_be_at_least_one() -> None:
    with pytest.raises(OptionError, match="--router-processes: '0' is not allowed"):
        load_settings(None, {"router_processes": "0"})


def test_a_process_of_a_group_gets_all_options_that_it_needs() -> None:
    config = RouterConfig(model="/models/tiny", workers=("a:1",), processes=2, process=0, group_dir="/run/group")
    words = dict(word.removeprefix("--").split("=", 1) for word in flags_of(config))
    assert words["process"] == "0"
    assert load(RouterConfig, None, {name.replace("-", "_"): text for name, text in words.items()}) == (config)


def test_one_process_is_not_started_as_a_group() -> None:
    result = CliRunner().invoke(main, ["--model=/models/tiny", "--processes=2"])
    assert result.exit_code == 2
    assert "use `baton router` to start several" in result.output
    with pytest.raises(OptionError, match="process and group_dir must be given together"):
        RouterConfig(model="/models/tiny", process=1)


def test_a_shared_port_is_reserved_and_only_listeners_get_connections() -> None:
    with shared_socket(HOST, 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port), timeout=5)
        with shared_socket(HOST, port) as first, shared_socket(HOST, port) as second:
            first.listen()
            second.listen()
            with pytest.raises(PortInUse, match=f"cannot listen on {HOST}:{port}"):
                check_port(HOST, port)
            first.close()
            with socket.create_connection((HOST, port), timeout=5) as client:
                taken, address = second.accept()
                taken.close()
                assert address == client.getsockname()
