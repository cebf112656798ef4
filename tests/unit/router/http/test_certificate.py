"""The HTTP server's certificate: replaced while the server runs, and validated at start."""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from baton.router.config import RouterConfig
from baton.router.http.certificate import Certificate, HttpsFiles, make_certificate
from baton.rpc.tls import TlsFiles
from baton.settings.values import OptionError
from tests.unit.router.rigs.running_router import DEADLINE_S, MODEL
from tests.unit.rpc.test_tls import write

NAME = "router.baton.test"


@asynccontextmanager
async def serving(certificate: Certificate) -> AsyncIterator[int]:
    """Run an echo server; yields its port."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    context = certificate.server_context()
    server = await asyncio.start_server(repeat, "127.0.0.1", 0, ssl=context, ssl_shutdown_timeout=1)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Client:
    """A connection that has received its first response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.serial = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]

    @property
    def may_resume(self) -> bool:
        """Whether a later connection could resume the TLS session."""
        session = self._writer.get_extra_info("ssl_object").session
        return session is not None and session.has_ticket

    async def ask(self) -> None:
        """Check that the connection works."""
        self._writer.write(b"hello\n")
        assert await asyncio.wait_for(self._reader.readline(), DEADLINE_S) == b"hello\n"


@asynccontextmanager
async def connected(
    port: int, authority: trustme.CA, name: str | None = NAME, shown: trustme.LeafCert | None = None
) -> AsyncIterator[Client]:
    """Return a context that trusts the authority. `name`: expected server name; `shown`: the client's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = name is not None
    authority.configure_trust(context)
    if shown is not None:
        shown.configure_cert(context)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name or "")
    try:
        client = Client(reader, writer)
        await client.ask()
        yield client
    finally:
        writer.transport.abort()


def https(files: TlsFiles, ca_certs: str | None = None, cert_reqs: ssl.VerifyMode = ssl.CERT_NONE) -> Certificate:
    return Certificate(HttpsFiles(files.cert, files.key, ca_certs, cert_reqs))


@pytest.mark.parametrize("name", [NAME, None])
async def test_each_connection_gets_the_current_certificate(tmp_path: Path, name: str | None) -> None:
    authority = trustme.CA()
    certificate = https(write(tmp_path, authority, NAME))
    async with serving(certificate) as port, connected(port, authority, name) as first:
        for _ in range(2):
            write(tmp_path, authority, NAME)
            async with connected(port, authority, name) as second, connected(port, authority, name) as third:
                assert second.serial == third.serial != first.serial
                assert third.may_resume
        await first.ask()


async def test_a_half_written_change_is_read_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    authority = trustme.CA()
    files = write(tmp_path / "files", authority, NAME)
    new = write(tmp_path / "new", authority, NAME)
    async with serving(https(files)) as port:
        async with connected(port, authority) as client:
            before = client.serial
        os.replace(new.key, files.key)
        for _ in range(3):
            async with connected(port, authority) as client:
                assert client.serial == before
        assert caplog.text.count("certificates for HTTPS changed and cannot be read") == 1
        os.replace(new.cert, files.cert)
        async with connected(port, authority) as client:
            assert client.serial != before
        for replace_key in (Path.unlink, os.mkfifo):  # a FIFO would block a reader that waits for a writer
            replace_key(Path(files.key))
            async with connected(port, authority) as client:
                assert client.serial != before
    assert caplog.text.count("certificates for HTTPS were replaced") == 1


async def test_client_certificates_are_checked_against_the_current_authority(tmp_path: Path) -> None:
    authority, old, new = trustme.CA(), trustme.CA(), trustme.CA()
    clients = tmp_path / "clients.pem"
    clients.write_bytes(old.cert_pem.bytes())
    certificate = https(write(tmp_path, authority, NAME), str(clients), ssl.CERT_REQUIRED)
    async with serving(certificate) as port:
        for trusted, other in ((old, new), (new, old)):
            clients.write_bytes(trusted.cert_pem.bytes())
            async with connected(port, authority, shown=trusted.issue_cert("client.baton.test")) as client:
                assert not client.may_resume  # and so be taken without being looked at
            for shown in (None, other.issue_cert("client.baton.test")):
                with pytest.raises((OSError, AssertionError)):  # of TLS 1.3, or the end of what is read
                    async with connected(port, authority, shown=shown):
                        pass


def encrypted(key: trustme.Blob) -> bytes:
    """Return the key, encrypted with an unknown password."""
    loaded = load_pem_private_key(key.bytes(), None)
    return loaded.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def test_an_unusable_certificate_is_an_error_at_start(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write(tmp_path, authority, NAME)
    paths = {"ssl_certfile": files.cert, "ssl_keyfile": files.key}
    assert make_certificate(RouterConfig(model=MODEL)) is None
    assert make_certificate(RouterConfig(model=MODEL, **paths)) is not None
    contents = {
        "stranger.pem": authority.issue_cert(NAME).private_key_pem.bytes(),
        "encrypted.pem": encrypted(authority.issue_cert(NAME).private_key_pem),
        "text.pem": b"none",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "fifo")
    for changes, words in (
        ({"ssl_keyfile": "stranger.pem"}, "is not that of the certificate in"),
        ({"ssl_keyfile": "encrypted.pem"}, "is encrypted"),
        ({"ssl_keyfile": "text.pem"}, "are not a certificate and its key in PEM"),
        ({"ssl_certfile": "text.pem"}, "are not a certificate and its key in PEM"),
        ({"ssl_certfile": "none.pem"}, "No such file or directory"),
        ({"ssl_keyfile": "."}, "Is a directory"),
        ({"ssl_certfile": "fifo"}, "it is not a regular file"),
        ({"ssl_ca_certs": "fifo"}, "it is not a regular file"),
        ({"ssl_ca_certs": "text.pem"}, "has no certificate of an authority"),
    ):
        given = {name: str(tmp_path / path) for name, path in changes.items()}
        config = RouterConfig(model=MODEL, **{**paths, **given}, ssl_cert_reqs=2 * ("ssl_ca_certs" in given))
        with pytest.raises(OptionError, match=words) as caught:
            make_certificate(config)
        assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"ssl_certfile": "cert.pem"},
        {"ssl_keyfile": "key.pem"},
        {"ssl_ca_certs": "ca.pem", "ssl_cert_reqs": 2},
        {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem", "ssl_ca_certs": "ca.pem"},
        {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem", "ssl_cert_reqs": 1},
    ],
)
def test_incomplete_tls_options_are_rejected(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"given together|requires"):
        RouterConfig(model=MODEL, **options)  # type: ignore[arg-type]  # a test's own choice of options
