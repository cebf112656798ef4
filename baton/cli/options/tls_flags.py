"""Certificate options of commands that connect to a cluster's processes over mutual TLS."""

import functools
from collections.abc import Callable
from typing import Any

import click

from baton.rpc.tls import make_security
from baton.settings.options import TLS_OPTIONS
from baton.settings.values import OptionError


def tls_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add --tls-cert, --tls-key, --tls-ca and --tls-server-name to a click command, which receives `security`."""

    @functools.wraps(command)
    def wrapped(**flags: Any) -> None:
        files = [flags.pop(name) for name in TLS_OPTIONS]
        try:
            security = make_security(*files)
        except OptionError as error:
            raise click.UsageError(str(error)) from error
        command(**flags, security=security)

    decorated: Callable[..., None] = wrapped
    for name, info in reversed(TLS_OPTIONS.items()):
        decorated = click.option(f"--{name.replace('_', '-')}", name, help=info.help)(decorated)
    return decorated
