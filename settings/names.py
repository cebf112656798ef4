"""Names and addresses of workers and requests, as used in logs, headers and metrics, and names of transports."""

import re
from ipaddress import ip_address
from typing import Literal
from urllib.parse import unquote, urlsplit

from baton.settings.values import OptionError

Role = Literal["prefill", "decode", "both"]
MetricsNames = Literal["baton", "vllm", "both"]
TRANSPORTS = ("auto", "shared_memory", "nixl", "tcp")  # of KV in host memory
GPU_TRANSPORTS = ("auto", "nixl", "nccl", "staged")  # of KV on GPUs
MAX_NAME_CHARS = 128
NAME = re.compile(rf"[\x21-\x7e]{{1,{MAX_NAME_CHARS}}}")
NAME_RULE = f"1 to {MAX_NAME_CHARS} visible ASCII characters"


def is_name(text: str) -> bool:
    """Return whether the text is a valid name."""
    return NAME.fullmatch(text) is not None


MAX_ADDRESS_CHARS = 300
ADDRESS = re.compile(r"[\x21-\x7e]+:[0-9]{1,5}")
UNIX_ADDRESS = re.compile(r"unix:/[\x21-\x7e]+")
DEFAULT_PORTS = {"http": 80, "https": 443}  # browsers omit them in origins
WILDCARDS = ("", "0.0.0.0", "::")  # listen on all addresses, but cannot be given to peers


def host_port(host: str, port: int) -> str:
    """Return HOST:PORT for gRPC and URLs, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_host_port(text: str) -> bool:
    """Return whether the text is HOST:PORT."""
    if len(text) > MAX_ADDRESS_CHARS or ADDRESS.fullmatch(text) is None:
        return False
    return 0 < int(text.rpartition(":")[2]) < 1 << 16


def is_worker_address(text: str) -> bool:
    """Return whether the text is HOST:PORT, or unix:PATH of a socket on this machine."""
    return is_host_port(text) or (len(text) <= MAX_ADDRESS_CHARS and UNIX_ADDRESS.fullmatch(text) is not None)


def is_loopback(host: str) -> bool:
    """Return whether a server on this host is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_origin(text: str) -> bool:
    """Return whether browsers send this as an `origin` header."""
    try:
        parts = urlsplit(text)
        is_default_port = parts.port is not None and parts.port == DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return False
    is_plain = parts.username is None and text == f"{parts.scheme}://{parts.netloc}".lower()
    return bool(parts.hostname) and is_plain and not is_default_port


def peer_address(peer: str) -> str:
    """Return the IP address in gRPC's peer text, such as `ipv6:%5B::1%5D:5000`; empty if there is none."""
    kind, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else ""


REGISTRY = "registry"  # used instead of an address
DEFAULT_NAME = "default"


def registered_name(rendezvous: str | None) -> str | None:
    """Return the registry name for `registry/NAME`, the default one for `registry` or None; None for an address.

    Raises OptionError for an invalid name.
    """
    if rendezvous is None:
        return DEFAULT_NAME
    word, slash, name = rendezvous.partition("/")
    if word != REGISTRY:
        return None
    if not slash:
        return DEFAULT_NAME
    if not is_name(name):
        raise OptionError(f"rendezvous: the name after `{REGISTRY}/` must be {NAME_RULE}")
    return name
