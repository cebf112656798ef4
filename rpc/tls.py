"""Security of gRPC between Baton's processes: plaintext or mutual TLS.

With mutual TLS every process presents a certificate, and accepts only peers whose certificate is signed by the
cluster's authority. The files are read again when they change, so certificates can be replaced while the cluster runs.
Open connections keep the certificates with which they began.
"""

import ssl
from dataclasses import dataclass
from typing import Protocol

import grpc

from baton.rpc.grpc_options import CHANNEL_OPTIONS
from baton.rpc.pem_files import FileWatch, load_authorities, load_pair
from baton.settings.regular_file import read_regular
from baton.settings.values import OptionError


class Security(Protocol):
    """Security of channels and servers."""

    @property
    def version(self) -> int:
        """Version of the certificates; channels made with an older version would use replaced files."""
        ...

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return a channel to host:port."""
        ...

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Make the server listen; return the port. Raises RuntimeError if the address is in use."""
        ...


class Plaintext:
    """No encryption or authentication, for one machine or a trusted network."""

    version = 0

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return a channel to host:port."""
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Make the server listen; return the port."""
        return server.add_insecure_port(address)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. server_name: a name in every peer's certificate; None: the host of the peer's address."""

    cert: str
    key: str
    ca: str
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class _Pems:
    cert: bytes
    key: bytes
    ca: bytes


class MutualTls:
    """Mutual TLS with certificates that are reloaded when their files change."""

    def __init__(self, files: TlsFiles) -> None:
        """Load the files. Raises OptionError if they are missing or do not match."""
        self._files = files
        try:
            self._watch = FileWatch("certificates", (files.cert, files.key, files.ca), lambda: _read(files))
        except OSError as error:
            raise OptionError(f"tls_cert, tls_key, tls_ca: {error}") from error

    @property
    def version(self) -> int:
        """Number that increases whenever the certificates are replaced."""
        self._watch.look()
        return self._watch.version

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return a channel to host:port with the current certificates."""
        pems = self._watch.look()
        credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        options: list[tuple[str, str | int]] = [*CHANNEL_OPTIONS]
        if self._files.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._files.server_name))
        return grpc.aio.secure_channel(address, credentials, options=options)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Make the server listen and return the port; new connections get the current certificates."""
        served_version = self.version

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served_version
            before, served_version = served_version, self.version
            return None if before == served_version else self._server_configuration()

        credentials = grpc.dynamic_ssl_server_credentials(
            self._server_configuration(),
            fetch,  # type: ignore[arg-type]  # the stubs lack None, which means no change
            require_client_authentication=True,
        )
        return server.add_secure_port(address, credentials)

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        pems = self._watch.look()
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], root_certificates=pems.ca)


def make_security(cert: str | None, key: str | None, ca: str | None, server_name: str | None) -> Security:
    """Return mutual TLS with these files, or plaintext without any. Raises OptionError if some are missing."""
    if cert is None and key is None and ca is None and server_name is None:
        return Plaintext()
    if cert is None or key is None or ca is None:
        raise OptionError("tls_cert, tls_key, tls_ca: all three are needed for TLS")
    return MutualTls(TlsFiles(cert, key, ca, server_name))


def _read(files: TlsFiles) -> _Pems:
    """Return the files' contents. Raises OSError for files that cannot be read or do not match."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, files.cert, files.key)
    load_authorities(context, files.ca)
    return _Pems(*(read_regular(name) for name in (files.cert, files.key, files.ca)))
