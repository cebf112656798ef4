"""Choosing ports."""

import socket

import pytest

from deployment.ports import FIRST_PORT, LAST_PORT, PortInUse, check_port, free_ports


def test_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports("127.0.0.1", 20)
    assert len(set(ports)) == 20
    for port in ports:
        assert FIRST_PORT <= port < LAST_PORT
        check_port("127.0.0.1", port)


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            check_port("127.0.0.1", port)


def test_a_host_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(PortInUse, match=r"cannot listen on 192\.0\.2\.1:80"):
        check_port("192.0.2.1", 80)
