"""The certificate that the router's HTTP server shows, and whose certificates it asks of its clients.

Certificates are renewed while the router runs: each handshake looks whether the files were replaced, and gets those of
its time. A connection that stands goes on with what it began with.
"""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from baton.router.config import RouterConfig
from baton.rpc.pem_files import FileWatch, load_authorities, load_pair
from baton.settings.values import OptionError


@dataclass(frozen=True, slots=True)
class HttpsFiles:
    """Where the PEM files are; with `ca_certs`, clients are asked for certificates of its authorities."""

    certfile: str
    keyfile: str
    ca_certs: str | None = None
    cert_reqs: ssl.VerifyMode = ssl.CERT_NONE

    @property
    def paths(self) -> list[str]:
        """All of them."""
        return [path for path in (self.certfile, self.keyfile, self.ca_certs) if path is not None]


@dataclass(frozen=True, slots=True)
class _Loaded:
    contents: list[bytes]
    context: ssl.SSLContext = field(compare=False)


class Certificate:
    """Owns the context of the files that are in use."""

    def __init__(self, files: HttpsFiles) -> None:
        """Raises OptionError for files that cannot be read or do not go together."""
        try:
            self._watch = FileWatch("certificates for HTTPS", files.paths, lambda: _load(files))
        except OSError as error:
            raise OptionError(f"ssl_certfile, ssl_keyfile, ssl_ca_certs: {error}") from error

    def server_context(self) -> ssl.SSLContext:
        """For a server that listens: its connections get the files of their time."""
        context = self._watch.look().context
        context.sni_callback = self._take_latest
        return context

    def _take_latest(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """OpenSSL calls this in every handshake, also of a client that names no server."""
        connection.context = self._watch.look().context


def make_certificate(config: RouterConfig) -> Certificate | None:
    """The certificate that the options name; None: clients speak plain HTTP. Raises OptionError."""
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return None
    reqs = ssl.VerifyMode(config.ssl_cert_reqs)
    return Certificate(HttpsFiles(config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs, reqs))


def _load(files: HttpsFiles) -> _Loaded:
    """Raises OSError."""
    contents = [Path(path).read_bytes() for path in files.paths]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    load_pair(context, files.certfile, files.keyfile)
    if files.ca_certs is not None:
        load_authorities(context, files.ca_certs)
        context.verify_mode = files.cert_reqs
        # Who resumes a session shows no certificate again, though its authority may not be taken any more.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return _Loaded(contents, context)
