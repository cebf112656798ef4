"""Checks of a router's options that depend on each other, or on their text."""

import re
from collections.abc import Iterable
from ipaddress import ip_address

from baton.router.auth.api_key import hidden
from baton.settings.names import is_origin
from baton.settings.slo import parse_slo
from baton.settings.values import OptionError

DEFAULT_SLO = "ttft=1s,tpot=50ms"


def promised_s(slo: str | None, ttft_ms: float | None, tpot_ms: float | None) -> dict[str, float]:
    """Return the targets `ttft` and `tpot` in seconds; empty: none. Raises OptionError.

    ttft_ms, tpot_ms: an older form of `slo`.
    """
    if (ttft_ms is None) != (tpot_ms is None):
        raise OptionError("target_ttft_ms: target_ttft_ms and target_tpot_ms must be given together")
    if ttft_ms is not None and tpot_ms is not None:
        if slo is not None:
            raise OptionError("slo: it replaces target_ttft_ms and target_tpot_ms; give slo alone")
        return {"ttft": ttft_ms / 1000, "tpot": tpot_ms / 1000}
    if slo == "none":
        return {}
    try:
        limits = parse_slo(slo or DEFAULT_SLO)
    except OptionError as error:
        raise OptionError(f"slo: {error}") from error
    if len(limits) < 2:
        raise OptionError(f"slo: {slo} must have both ttft and tpot, such as ttft=1s,tpot=50ms")
    return limits


def hidden_keys(name: str, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the digests of API keys. Raises OptionError if there is none, or an empty one."""
    if not keys or not all(keys):
        raise OptionError(f"{name}: must not be empty; omit it if there is no key")
    return tuple(map(hidden, keys))


def check_origins(cors_origins: Iterable[str]) -> None:
    """Raise OptionError for an origin that no browser sends: it would have no effect."""
    for origin in cors_origins:
        if origin not in ("*", "null") and not is_origin(origin):
            text = "must be * or scheme://host[:port], without a path and the scheme's default port"
            raise OptionError(f"cors_origins: {origin!r} {text}")


def check_https(certfile: str | None, keyfile: str | None, ca_certs: str | None, cert_reqs: int) -> None:
    """Raise OptionError for HTTPS options that would have no effect because another one is missing."""
    if (certfile is None) != (keyfile is None):
        raise OptionError("ssl_certfile: ssl_certfile and ssl_keyfile must be given together")
    if (ca_certs is None) != (cert_reqs == 0):
        raise OptionError("ssl_ca_certs: ssl_ca_certs and an ssl_cert_reqs of 1 or 2 must be given together")
    if ca_certs is not None and certfile is None:
        raise OptionError("ssl_ca_certs: requires ssl_certfile and ssl_keyfile")


HOST_NAME = re.compile(r"(?![0-9.]+$)[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*")


def check_media_domains(allowed_media_domains: Iterable[str]) -> None:
    """Raise OptionError for a host that no URL has: it would have no effect."""
    for host in allowed_media_domains:
        if HOST_NAME.fullmatch(host) is None and not _is_address(host):
            text = "must be a name such as example.org, or an address such as 10.0.0.1 or ::1, without scheme and port"
            raise OptionError(f"allowed_media_domains: {host!r} {text}")


def _is_address(host: str) -> bool:
    try:
        return str(ip_address(host)) == host
    except ValueError:
        return False
