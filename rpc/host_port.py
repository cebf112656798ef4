"""Addresses as text."""


def host_port(host: str, port: int) -> str:
    """HOST:PORT as gRPC and URLs take it: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
