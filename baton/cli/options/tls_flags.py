"""Certificate options of commands that connect to a cluster's processes over mutual TLS."""

from dataclasses import dataclass

from baton.cli.options.flag_group import Flags, flag_group
from baton.rpc.tls import Security, make_security
from baton.settings.flags import click_options
from baton.settings.options import TLS_CA, TLS_CERT, TLS_KEY, TLS_SERVER_NAME, option, options_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFlags:
    """The flags."""

    tls_cert: str | None = option(None, TLS_CERT)
    tls_key: str | None = option(None, TLS_KEY)
    tls_ca: str | None = option(None, TLS_CA)
    tls_server_name: str | None = option(None, TLS_SERVER_NAME)


def _make_security(flags: Flags) -> Security:
    return make_security(*(flags[name] for name in options_of(TlsFlags)))


tls_flags = flag_group("security", _make_security, click_options(options_of(TlsFlags)))
