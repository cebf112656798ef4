"""Addresses as text."""

from baton.settings.names import host_port, peer_address


def test_addresses_of_ipv4_and_ipv6_hosts() -> None:
    assert host_port("127.0.0.1", 8000) == "127.0.0.1:8000"
    assert host_port("::1", 8000) == "[::1]:8000"


def test_the_host_of_a_grpc_peer_is_parsed() -> None:
    peers = ("ipv4:10.0.0.1:5000", "ipv6:%5B2001:db8::1%5D:5000", "ipv6:[::1]:5000", "unix:/run/a:5")
    assert [*map(peer_address, peers)] == ["10.0.0.1", "2001:db8::1", "::1", ""]
