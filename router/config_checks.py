"""Checks of a router's options that depend on each other, or on their text."""

import re
from collections.abc import Collection, Iterable
from ipaddress import ip_address

from baton.router.adapters.adapter import MAX_ADAPTERS
from baton.router.adapters.module import read_module
from baton.router.auth.api_key import hidden
from baton.settings.names import is_origin, is_worker_address
from baton.settings.registry_url import parse_registry_url
from baton.settings.slo import parse_slo
from baton.settings.values import OptionError

DEFAULT_SLO = "ttft=1s,tpot=50ms"
MIN_HEARTBEAT_TIMEOUT_S = 1.0  # less would kill processes that are only busy
MIN_SECRET_CHARS = 16
HOST_NAME = re.compile(r"(?![0-9.]+$)[a-zA-Z0-9_-]+(\.[a-zA-Z0-9_-]+)*")


def check_cache_secret(cache_secret: str | None) -> None:
    """Raise OptionError for a secret that can be guessed."""
    if cache_secret is not None and len(cache_secret) < MIN_SECRET_CHARS:
        raise OptionError(f"cache_secret: must have at least {MIN_SECRET_CHARS} characters, chosen at random")


def check_heartbeat_timeout(heartbeat_timeout_s: float) -> None:
    """Raise OptionError for a timeout that is too short; 0: none."""
    if 0 < heartbeat_timeout_s < MIN_HEARTBEAT_TIMEOUT_S:
        raise OptionError(f"heartbeat_timeout_s: must be 0 or at least {MIN_HEARTBEAT_TIMEOUT_S:g}")


def check_reserved(num_reserved: int, num_models: int) -> None:
    """Raise OptionError if the models have no reserved places for completions."""
    if not num_reserved:
        raise OptionError(f"max_inflight: must be at least {2 * num_models} with {num_models} models")


def check_together(**options: object) -> None:
    """Raise OptionError if some of the options are given, and others not."""
    if len({value is None for value in options.values()}) > 1:
        raise OptionError(f"{next(iter(options))}: {' and '.join(options)} must be given together")


def check_members(registry: str | None, workers: Iterable[str]) -> None:
    """Raise OptionError unless workers are named one way, by valid addresses or a valid registry URL."""
    if registry is not None:
        parse_registry_url(registry)
        if workers:
            raise OptionError("registry: give either registry or workers, not both")
    for address in workers:
        if not is_worker_address(address):
            raise OptionError(f"workers: {address!r} is neither host:port, such as 127.0.0.1:7000, nor unix:/path")


def check_names(names: Iterable[str]) -> None:
    """Raise OptionError if two served models have the same name."""
    seen = set[str]()
    for name in names:
        if name in seen:
            text = f"two models have the name {name}; give one of them another, as PATH=NAME"
            raise OptionError(f"also_serve: {text}")
        seen.add(name)


def check_lora(is_enabled: bool, modules: Collection[str], directory: str | None, models: Collection[str]) -> None:
    """Raise OptionError for adapters that cannot be served."""
    if not is_enabled and (modules or directory is not None):
        raise OptionError(f"{'lora_modules' if modules else 'lora_dir'}: requires enable_lora")
    if directory is not None and not directory.startswith("/"):
        raise OptionError(f"lora_dir: {directory!r} must be an absolute path, the same for routers and workers")
    if len(modules) > MAX_ADAPTERS:
        raise OptionError(f"lora_modules: {len(modules)} adapters, over the limit of {MAX_ADAPTERS}")
    names = set(models)
    for text in modules:
        try:
            module = read_module(text)
        except OptionError as error:
            raise OptionError(f"lora_modules: {error}") from error
        if module.name in names:
            what = "a served model" if module.name in models else "another adapter"
            raise OptionError(f"lora_modules: {module.name} is the name of {what}; choose another")
        if module.base_model_name is not None and module.base_model_name not in models:
            known = ", ".join(models)
            raise OptionError(f"lora_modules: base_model_name {module.base_model_name} is not served, but {known}")
        names.add(module.name)


def check_pin_prefix(files: Collection[str], is_scoped: bool) -> None:
    """Raise OptionError if no request would find the pinned prefixes; is_scoped: API keys share no cached prompts."""
    if files and is_scoped:
        raise OptionError(
            "pin_prefix: API keys share no cached prompts, so none would find the prefix; set shared_cache, or have "
            "each key pin it (/v1/cache/pins)"
        )


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
    check_together(ssl_certfile=certfile, ssl_keyfile=keyfile)
    if (ca_certs is None) != (cert_reqs == 0):
        raise OptionError("ssl_ca_certs: ssl_ca_certs and an ssl_cert_reqs of 1 or 2 must be given together")
    if ca_certs is not None and certfile is None:
        raise OptionError("ssl_ca_certs: requires ssl_certfile and ssl_keyfile")


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


def read_targets(slo: str | None, ttft_ms: float | None, tpot_ms: float | None) -> dict[str, float]:
    """Return the targets `ttft` and `tpot` in seconds; empty: none. Raises OptionError.

    `ttft_ms` and `tpot_ms`: the older form.
    """
    if (ttft_ms is None) != (tpot_ms is None):
        raise OptionError("target_ttft_ms: target_ttft_ms and target_tpot_ms must be given together")
    if slo is not None and ttft_ms is not None:
        raise OptionError("slo: it replaces target_ttft_ms and target_tpot_ms; give slo alone")
    if ttft_ms is not None and tpot_ms is not None:
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
