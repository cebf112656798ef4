"""Certificate options of commands that connect to a cluster's processes over mutual TLS."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from baton.rpc.tls import make_security
from baton.settings.flags import click_options
from baton.settings.options import TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME, option, options_of
from baton.settings.values import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFlags:
    """Certificates of a command."""

    tls_cert: str | None = option(None, TLS_CERT)
    tls_key: str | None = option(None, TLS_KEY)
    tls_ca: str | None = option(None, TLS_CA)
    tls_server_name: str | None = option(None, TLS_SERVER_NAME)


def tls_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add --tls-cert, --tls-key, --tls-ca and --tls-server-name to a click command, which receives `security`."""

    @functools.wraps(command)
    def wrapped(**flags: Any) -> None:
        files = [flags.pop(name) for name in options_of(TlsFlags)]
        try:
            security = make_security(*files)
        except OptionError as error:
            raise click.UsageError(str(error)) from error
        command(**flags, security=security)

    return click_options(options_of(TlsFlags))(wrapped)
