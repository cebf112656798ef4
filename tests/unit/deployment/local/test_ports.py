"""Free ports: distinct, unused, and outside the range of ephemeral ports."""

import socket

import pytest

from baton.deployment.local import ports
from baton.deployment.local.ports import PortInUse, check_port, free_ports

HOST = "127.0.0.1"


def test_free_ports_are_distinct_and_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = sorted(free_ports(HOST, 40))
    monkeypatch.setattr(ports, "FIRST_PORT", first)
    monkeypatch.setattr(ports, "LAST_PORT", first + 4)
    assert len({first, *others}) == 40
    with socket.create_server((HOST, first)):
        assert set(free_ports(HOST, 1)) <= {first + 1, first + 2, first + 3}
        with pytest.raises(PortInUse, match=f"did not find 4 free ports from {first} to {first + 4}"):
            free_ports(HOST, 4)


def test_ports_that_were_given_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(free_ports(HOST, 40))
    monkeypatch.setattr(ports, "FIRST_PORT", first)
    monkeypatch.setattr(ports, "LAST_PORT", first + 6)
    monkeypatch.setattr(ports, "_given", {first})
    assert sorted(free_ports(HOST, 3) + free_ports(HOST, 2)) == list(range(first + 1, first + 6))
    assert free_ports(HOST, 1)[0] in range(first, first + 6)


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortInUse, match=f"cannot listen on {HOST}:{port}"):
            check_port(HOST, port)
    check_port(HOST, port)
