"""How Baton's processes speak gRPC to each other: in the clear, or over mutual TLS.

With mutual TLS every process shows a certificate, and takes only peers whose certificate is signed by the cluster's own
authority. The files are read again when they change: certificates can be replaced while everything runs. A connection
that stands goes on with those that it began with.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from baton.rpc.grpc_options import CHANNEL_OPTIONS
from baton.rpc.pem_files import FileWatch, load_authorities, load_pair
from baton.settings.values import OptionError


class Security(Protocol):
    """How connections are made."""

    @property
    def version(self) -> int:
        """Another one: channels made before would connect with files that have been replaced."""
        ...

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to host:port."""
        ...

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Has the server listen; returns the port. Raises RuntimeError if the address is taken."""
        ...


class Plaintext:
    """No encryption, and everybody is taken for whom he says he is: for one machine, or a network of one's own."""

    version = 0

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to host:port."""
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Has the server listen; returns the port."""
        return server.add_insecure_port(address)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the PEM files are; `server_name`: a name in every peer's certificate, None: the host of its address."""

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
    """Owns the certificates that are in use."""

    def __init__(self, files: TlsFiles) -> None:
        """Raises OptionError for files that are missing or do not go together."""
        self._files = files
        try:
            self._watch = FileWatch("certificates", (files.cert, files.key, files.ca), lambda: _read(files))
        except OSError as error:
            raise OptionError(f"tls_cert, tls_key, tls_ca: {error}") from error

    @property
    def version(self) -> int:
        """One more whenever the certificates were replaced."""
        self._watch.look()
        return self._watch.version

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to host:port, with the certificates of now."""
        pems = self._watch.look()
        credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        options: list[tuple[str, str | int]] = [*CHANNEL_OPTIONS]
        if self._files.server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._files.server_name))
        return grpc.aio.secure_channel(address, credentials, options=options)

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Has the server listen; each new connection gets the certificates of its time."""
        told = self.version

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal told
            before, told = told, self.version
            return None if before == told else self._server_configuration()

        credentials = grpc.dynamic_ssl_server_credentials(
            self._server_configuration(),
            fetch,  # type: ignore[arg-type]  # the stubs lack None, which stands for no change
            require_client_authentication=True,
        )
        return server.add_secure_port(address, credentials)

    def _server_configuration(self) -> grpc.ServerCertificateConfiguration:
        pems = self._watch.look()
        return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], root_certificates=pems.ca)


def make_security(cert: str | None, key: str | None, ca: str | None, server_name: str | None) -> Security:
    """Mutual TLS with these files, or plaintext without any. Raises OptionError if some are missing."""
    if cert is None and key is None and ca is None and server_name is None:
        return Plaintext()
    if cert is None or key is None or ca is None:
        raise OptionError("tls_cert, tls_key, tls_ca: all three are needed, or nothing of TLS")
    return MutualTls(TlsFiles(cert, key, ca, server_name))


def _read(files: TlsFiles) -> _Pems:
    """The files' contents. Raises OSError for those that cannot be read or do not go together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(context, files.cert, files.key)
    load_authorities(context, files.ca)
    return _Pems(*(Path(name).read_bytes() for name in (files.cert, files.key, files.ca)))
