"""The files with which a command speaks to a router over HTTPS."""

import functools
import ssl
from collections.abc import Callable
from typing import Any

import click

from baton.rpc.pem_files import load_authorities, load_pair

HTTPS_OPTIONS = {
    "ssl_ca_certs": "PEM file with the authority that signed an https:// server's certificate; unset: the system's.",
    "ssl_certfile": "PEM file with our own certificate, for a server that asks for one.",
    "ssl_keyfile": "PEM file with that certificate's key.",
}


def https_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a click command --ssl-ca-certs, --ssl-certfile and --ssl-keyfile; it gets them as `https`."""

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
    """How servers are checked, and what is shown to them. Raises OSError for files that are no good."""
    if (certfile is None) != (keyfile is None):
        raise OSError("--ssl-certfile needs --ssl-keyfile, and --ssl-keyfile needs it")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_certs is None:
        context.load_default_certs()
    else:
        load_authorities(context, ca_certs)
    if certfile is not None and keyfile is not None:
        load_pair(context, certfile, keyfile)
    return context
