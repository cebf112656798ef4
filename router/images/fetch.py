"""Fetching of images by URL, from allowed hosts only.

An attacker chooses the URLs, and may control an allowed host's DNS records. Each connection therefore resolves the
name itself and connects to an address that was checked: a public one, or one that is allowed as such. Redirects are
followed to allowed hosts. Proxies of the environment are not used.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Collection, Iterable
from urllib.parse import urljoin, urlsplit

import httpcore

from baton.router.errors import FieldError
from baton.router.images.source import ImageSource, too_large

TIMEOUT_S = 10.0  # for all of an image
MAX_REDIRECTS = 3
MAX_CONNECTIONS = 16
MAX_SHOWN_CHARS = 200
MAX_URL_CHARS = 8192  # as most servers; urllib caches what it has parsed
OK, REDIRECTS = 200, (301, 302, 303, 307, 308)
HEADERS = [("Accept", "image/*"), ("Accept-Encoding", "identity"), ("User-Agent", "baton")]
SCHEMES = ("http", "https")
# Addresses whose last 32 bits are an IPv4 address: IPv4-compatible, mapped and translated ones, and NAT64 (RFC 6052).
WITH_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")))
LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")  # RFC 8215; where the IPv4 address is, each network decides


class ForbiddenAddress(Exception):
    """The name of an allowed host leads to an address that is neither public nor allowed."""


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet's; with an IPv4 address in it, whether that one is."""
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found.is_site_local or found in LOCAL_NAT64:
            return False
        if found.sixtofour is not None:
            found = found.sixtofour
        elif any(found in network for network in WITH_IPV4):
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found.is_global and not found.is_multicast


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Network that connects to public addresses, and to those that are allowed as such."""

    def __init__(self, allowed: Collection[str]) -> None:
        self._allowed = allowed
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of a host that may be used. Raises ForbiddenAddress if there is none."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} has no address") from error
        addresses = [str(each[4][0]) for each in found]
        checked = [each for each in addresses if each in self._allowed or is_public(each)]
        if not checked:
            raise ForbiddenAddress(
                f"{host} has the address {addresses[0]}, which is not public; list it if it is meant"
            )
        for address in checked[:-1]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore.ConnectError:
                continue
        return await self._inner.connect_tcp(checked[-1], port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        await asyncio.sleep(seconds)


class ImageFetcher:
    """Client that fetches images from allowed hosts."""

    def __init__(self, hosts: Collection[str], timeout_s: float = TIMEOUT_S) -> None:
        """hosts: names, or addresses, which may be private."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._timeout_s = timeout_s
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=MAX_CONNECTIONS, keepalive_expiry=5.0, network_backend=CheckedNetwork(self._hosts)
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    async def fetch(self, source: ImageSource, max_bytes: int) -> bytes:
        """Return the bytes of an image. Raises FieldError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._fetch(source, max_bytes)
        except TimeoutError as error:
            raise _failed(source, f"it took longer than {self._timeout_s:g} s") from error
        except ForbiddenAddress as error:
            raise _failed(source, str(error)) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise _failed(source, str(error)[:MAX_SHOWN_CHARS] or type(error).__name__) from error

    async def _fetch(self, source: ImageSource, max_bytes: int) -> bytes:
        url = source.url
        for _ in range(MAX_REDIRECTS + 1):
            self._check(source, url)
            async with self._pool.stream("GET", url, headers=HEADERS) as response:
                if response.status in REDIRECTS:
                    url = _target(source, url, _header(response, b"location"))
                    continue
                if response.status != OK:
                    raise _failed(source, f"the server responded with status {response.status}")
                return await _body(response, source, max_bytes)
        raise _failed(source, f"it has more than {MAX_REDIRECTS} redirects")

    def _check(self, source: ImageSource, url: str) -> None:
        """Raise FieldError unless the URL is one of an allowed host."""
        if len(url) > MAX_URL_CHARS:
            raise _failed(source, f"it has {len(url)} characters, over the limit of {MAX_URL_CHARS}")
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
            url.encode("ascii")
        except ValueError as error:  # also what is not ASCII
            raise _failed(source, "it is no valid URL") from error
        if parts.scheme not in SCHEMES or not host or parts.username is not None:
            raise _failed(source, "it must be http:// or https:// with a host, and without a user")
        if host not in self._hosts:
            text = f"{host[:MAX_SHOWN_CHARS]} is not an allowed host"
            raise _failed(source, f"{text}, only {', '.join(sorted(self._hosts))}")


async def _body(response: httpcore.Response, source: ImageSource, max_bytes: int) -> bytes:
    body = bytearray()
    async for piece in response.aiter_stream():
        body += piece
        if len(body) > max_bytes:
            raise too_large(source, len(body), max_bytes)
    return bytes(body)


def _target(source: ImageSource, url: str, location: str) -> str:
    """Return the URL to which a redirect leads. Raises FieldError."""
    try:
        return urljoin(url, location[: MAX_URL_CHARS + 1])
    except ValueError as error:
        raise _failed(source, "it redirects to no valid URL") from error


def _header(response: httpcore.Response, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), "")


def _failed(source: ImageSource, why: str) -> FieldError:
    return FieldError(source.field, f"{source.field} could not be fetched: {why}")
