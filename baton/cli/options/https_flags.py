"""Certificate options of commands that connect to a router over HTTPS."""

import ssl

import click

from baton.cli.options.flag_group import Flags, flag_group
from baton.rpc.pem_files import load_authorities, load_pair


def _make_context(flags: Flags) -> ssl.SSLContext | None:
    files = (flags["ssl_ca_certs"], flags["ssl_certfile"], flags["ssl_keyfile"])
    return client_context(*files) if any(files) else None


https_flags = flag_group(
    "https",
    _make_context,
    click.option("--ssl-ca-certs", help="CA certificates (PEM) for https:// servers. Default: the system's."),
    click.option("--ssl-certfile", help="Client certificate (PEM), for servers that require one."),
    click.option("--ssl-keyfile", help="Private key (PEM) of --ssl-certfile."),
)


def client_context(ca_certs: str | None, certfile: str | None, keyfile: str | None) -> ssl.SSLContext:
    """Return the TLS context of a client. Raises OSError for missing or invalid files."""
    if (certfile is None) != (keyfile is None):
        raise OSError("--ssl-certfile and --ssl-keyfile must be given together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_certs is None:
        context.load_default_certs()
    else:
        load_authorities(context, ca_certs)
    if certfile is not None and keyfile is not None:
        load_pair(context, certfile, keyfile)
    return context
