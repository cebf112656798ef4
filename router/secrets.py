"""Secrets of a router, which its environment keeps off command lines."""

from collections.abc import Mapping
from dataclasses import replace

from baton.router.config import SECRETS, RouterConfig


def with_secrets(flags: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """Return the flags plus the secrets of the environment, which keep secrets off command lines. Flags win.

    An empty variable counts as set, so that a server that was meant to have a key does not run without one.
    """
    given = dict(flags)
    for name, variable in SECRETS.items():
        if given.get(name) is None and variable in environ:
            given[name] = environ[variable]
    return given


def without_secrets(config: RouterConfig) -> tuple[RouterConfig, dict[str, str]]:
    """Return a config whose flags may appear on a command line, and environment variables for the secrets removed."""
    secrets = {"registry": config.registry, "cache_secret": config.cache_secret}  # the config has digests of API keys
    env = {SECRETS[name]: value for name, value in secrets.items() if value is not None}
    return replace(config, registry=None, cache_secret=None), env
