"""Images are fetched from allowed hosts and addresses only, within bounds of bytes, time and redirects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from baton.router.config import RouterConfig
from baton.router.errors import FieldError
from baton.router.images.fetch import ImageFetcher, is_public
from baton.router.images.source import ImageSource
from baton.settings.values import OptionError

LOCAL = "127.0.0.1"
FIELD = "messages[0].content[0].image_url"


class Server:
    """An HTTP server with a response for each path, and the number of requests that it got."""

    def __init__(self) -> None:
        self.port = 0
        self.responses: dict[str, bytes] = {}
        self.num_requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.num_requests += 1
        path = head.split(b" ")[1].decode()
        if path == "/hangs":
            await reader.read()
        else:
            writer.write(self.responses[path])
            await writer.drain()
        writer.close()

    def respond(self, path: str, status: int, body: bytes = b"", **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.responses[path] = "\r\n".join(lines).encode() + b"\r\n\r\n" + body

    def source(self, path: str, host: str = LOCAL) -> ImageSource:
        return ImageSource(FIELD, f"http://{host}:{self.port}{path}")


@asynccontextmanager
async def server_and_fetcher(*hosts: str, timeout_s: float = 10.0) -> AsyncIterator[tuple[Server, ImageFetcher]]:
    server, fetcher = Server(), ImageFetcher(hosts, timeout_s)
    listening = await asyncio.start_server(server.serve, LOCAL, 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server, fetcher
    finally:
        await fetcher.close()
        listening.close()


async def test_an_image_of_an_allowed_address_is_fetched() -> None:
    async with server_and_fetcher(LOCAL) as (server, fetcher):
        server.respond("/a.png", 200, b"content")
        assert await fetcher.fetch(server.source("/a.png"), 100) == b"content"


async def test_a_name_is_fetched_if_its_private_address_is_listed_too() -> None:
    async with server_and_fetcher("LocalHost", LOCAL) as (server, fetcher):
        server.respond("/a.png", 200, b"content")
        assert await fetcher.fetch(server.source("/a.png", "localhost"), 100) == b"content"


async def test_a_name_that_leads_to_a_private_address_is_refused_unasked() -> None:
    async with server_and_fetcher("localhost") as (server, fetcher):
        with pytest.raises(FieldError, match=r"localhost has the address .*, which is not public"):
            await fetcher.fetch(server.source("/a.png", "localhost"), 100)
        assert server.num_requests == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://169.254.169.254/latest", "169.254.169.254 is not an allowed host, only example.org"),
        ("http://example.org.evil.test/", "example.org.evil.test is not an allowed host"),
        ("http://example.org@evil.test/", "without a user"),
        ("ftp://example.org/a.png", "must be http:// or https://"),
        ("file:///etc/passwd", "must be http:// or https://"),
        ("http://example.org:no/", "it is no valid URL"),
        ("http://ex\u00e4mple.org/", "it is no valid URL"),
        ("http://[", "it is no valid URL"),
        ("http://example.org/" + "x" * 9000, "has 9019 characters, over the limit of 8192"),
    ],
)
async def test_urls_of_other_hosts_are_refused(url: str, message: str) -> None:
    async with server_and_fetcher("example.org") as (_, fetcher):
        with pytest.raises(FieldError, match=message) as refused:
            await fetcher.fetch(ImageSource(FIELD, url), 100)
        assert refused.value.field == FIELD


async def test_redirects_lead_to_allowed_hosts_only() -> None:
    async with server_and_fetcher(LOCAL) as (server, fetcher):
        server.respond("/a.png", 302, location="/b.png")
        server.respond("/b.png", 200, b"content")
        server.respond("/out", 302, location=f"http://localhost:{server.port}/b.png")
        server.respond("/loop", 302, location="/loop")
        assert await fetcher.fetch(server.source("/a.png"), 100) == b"content"
        with pytest.raises(FieldError, match="localhost is not an allowed host"):
            await fetcher.fetch(server.source("/out"), 100)
        with pytest.raises(FieldError, match="more than 3 redirects"):
            await fetcher.fetch(server.source("/loop"), 100)
        server.respond("/bad", 302, location="http://[")
        with pytest.raises(FieldError, match="redirects to no valid URL"):
            await fetcher.fetch(server.source("/bad"), 100)


@pytest.mark.parametrize(
    "address",
    ["10.0.0.1", "127.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.251", "::1", "fe80::1%eth0", "fd00::1",
     "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::", "0.0.0.0", "64:ff9b::a9fe:a9fe",
     "64:ff9b:1::10.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "fec0::1"],
)  # fmt: skip
def test_addresses_inside_a_network_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_addresses_of_the_internet_are_public() -> None:
    assert is_public("93.184.215.14")
    assert is_public("2606:2800:21f:cb07:6820:80da:af6b:8b2c")
    assert is_public("64:ff9b::93.184.215.14")


def test_hosts_that_no_url_has_are_refused_as_options() -> None:
    RouterConfig(model="m", workers=("w:1",), allowed_media_domains=("Example.org", "my_host", "10.0.0.1", "::1"))
    for host in ("*.example.org", "https://example.org", "example.org:80", "example.org.", "[::1]", "0:0::1", "10.1"):
        with pytest.raises(OptionError, match=r"must be a name such as example.org, or an address") as refused:
            RouterConfig(model="m", workers=("w:1",), allowed_media_domains=(host,))
        assert repr(host) in str(refused.value)


async def test_bytes_time_and_status_are_bounded() -> None:
    async with server_and_fetcher(LOCAL, timeout_s=0.3) as (server, fetcher):
        server.respond("/large", 200, b"x" * 101)
        server.respond("/missing", 404)
        with pytest.raises(FieldError, match="has 101 bytes, over the limit of 100 for an image"):
            await fetcher.fetch(server.source("/large"), 100)
        with pytest.raises(FieldError, match="responded with status 404"):
            await fetcher.fetch(server.source("/missing"), 100)
        with pytest.raises(FieldError, match=r"took longer than 0\.3 s"):
            await fetcher.fetch(server.source("/hangs"), 100)
        server.responses["/broken"] = b"nonsense\r\n\r\n"
        with pytest.raises(FieldError, match="could not be fetched"):
            await fetcher.fetch(server.source("/broken"), 100)
