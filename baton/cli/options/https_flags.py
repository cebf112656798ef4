"""Certificate options of commands that connect to a router over HTTPS."""

import functools
import ssl
from collections.abc import Callable
from typing import Any

import click

from baton.rpc.pem_files import load_authorities, load_pair

HTTPS_OPTIONS = {
    "ssl_ca_certs": "CA certificates (PEM) for https:// servers. Default: the system's.",
    "ssl_certfile": "Client certificate (PEM), for servers that require one.",
    "ssl_keyfile": "Private key (PEM) of --ssl-certfile.",
}


def https_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add --ssl-ca-certs, --ssl-certfile and --ssl-keyfile to a click command, which receives them as `https`."""

    @functools.wraps(command)
    def wrapped(**flags: Any) -> None:
        files = [flags.pop(name) for name in HTTPS_OPTIONS]
        try:
            https = client_context(*files) if any(files) else None
        except OSError as error:
            raise click.UsageError(str(error)) from error
        command(**flags, https=https)

    decorated: Callable[..., None] = wrapped
    for name, text in reversed(HTTPS_OPTIONS.items()):
        decorated = click.option(f"--{name.replace('_', '-')}", name, help=text)(decorated)
    return decorated


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
