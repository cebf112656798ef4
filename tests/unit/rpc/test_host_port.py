"""Addresses as text."""

from baton.rpc.host_port import host_port


def test_an_address_of_two_kinds_of_hosts() -> None:
    assert host_port("127.0.0.1", 8000) == "127.0.0.1:8000"
    assert host_port("::1", 8000) == "[::1]:8000"
