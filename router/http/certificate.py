"""TLS of the router's HTTP server: its certificate, and the authorities of client certificates.

Certificates may be renewed while the router runs: each handshake checks whether the files were replaced, and uses the
current ones. Established connections are unaffected.
"""

import ssl
from dataclasses import dataclass, field

from baton.router.config import RouterConfig
from baton.rpc.pem_files import FileWatch, load_authorities, load_pair
from baton.settings.regular_file import read_regular
from baton.settings.values import OptionError


@dataclass(frozen=True, slots=True)
class HttpsFiles:
    """Paths of the PEM files; with `ca_certs`, clients are asked for certificates of these authorities."""

    certfile: str
    keyfile: str
    ca_certs: str | None = None
    cert_reqs: ssl.VerifyMode = ssl.CERT_NONE

    @property
    def paths(self) -> list[str]:
        """Paths of all files."""
        return [path for path in (self.certfile, self.keyfile, self.ca_certs) if path is not None]


@dataclass(frozen=True, slots=True)
class _Loaded:
    contents: list[bytes]
    context: ssl.SSLContext = field(compare=False)


class Certificate:
    """SSL context of the current files."""

    def __init__(self, files: HttpsFiles) -> None:
        """Raise OptionError for files that cannot be read or do not match."""
        try:
            self._watch = FileWatch("certificates for HTTPS", files.paths, lambda: _load(files))
        except OSError as error:
            raise OptionError(f"ssl_certfile, ssl_keyfile, ssl_ca_certs: {error}") from error

    def server_context(self) -> ssl.SSLContext:
        """Return a context for a listening server; each of its connections uses the files current at its handshake."""
        context = self._watch.look().context
        context.sni_callback = self._take_latest
        return context

    def _take_latest(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        """Set the current context. OpenSSL calls this in every handshake, even without SNI."""
        connection.context = self._watch.look().context


def make_certificate(config: RouterConfig) -> Certificate | None:
    """Return the certificate in the options; None for plain HTTP. Raises OptionError."""
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return None
    reqs = ssl.VerifyMode(config.ssl_cert_reqs)
    return Certificate(HttpsFiles(config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs, reqs))


def _load(files: HttpsFiles) -> _Loaded:
    """Raises OSError."""
    contents = [read_regular(path) for path in files.paths]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    load_pair(context, files.certfile, files.keyfile)
    if files.ca_certs is not None:
        load_authorities(context, files.ca_certs)
        context.verify_mode = files.cert_reqs
        # No session resumption: a resumed session skips the client certificate, whose authority may have been removed.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
    return _Loaded(contents, context)
