"""Parser of a Ray Serve application's arguments."""

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from baton.deployment.local.cluster_config import ClusterSettings, load_settings
from baton.deployment.ray.checks import check_deployments
from baton.deployment.ray.options import read_deployment
from baton.deployment.ray.settings import (
    FORMER_SECTIONS,
    RENDEZVOUS,
    ROLES,
    ROUTER,
    SECTIONS,
    RaySettings,
    SharedOptions,
)
from baton.engine.execution.visible_gpus import visible_gpus
from baton.process.log_settings import LogSettings
from baton.router.auth.api_key import hidden
from baton.settings.config_file import as_section, build, check_section, pick
from baton.settings.names import Role
from baton.settings.options import options_of
from baton.settings.registry_url import parse_registry_url
from baton.settings.values import OptionError, Value, shown

BELOW = "local_prefill_below"
DEFAULTS: dict[str, dict[str, Value]] = {RENDEZVOUS: {"num_cpus": 0.0}}  # negligible load: place it on any node
ROUTER_KEYS = ("host", "port", "router_processes", "api_server_count", SECTIONS[ROUTER])  # outside of its section


def read_ray_settings(
    content: Mapping[str, object],
    flags: Mapping[str, object],
    one_machine: bool = False,
    auto_device: str | None = None,
) -> RaySettings:
    """Read settings from an application's arguments (or a file's content) and flags (None: not set); flags win.

    The arguments are the keys of `baton serve`'s file, those of `SharedOptions`, and a section of `SECTIONS` for each
    deployment; `router: false` leaves the router out. `SECTION.KEY` sets a key of a section. `local_prefill_below` has
    a default only on one machine. The device `auto` follows a deployment's `num_gpus`; without that it is
    `auto_device`, by default this machine's. Raises OptionError with the offending key.
    """
    rest = _nested(as_section(content, "arguments"))
    for former, section in FORMER_SECTIONS.items():
        if former in rest and section in rest:
            raise OptionError(f"{former}: given twice, under the names {former} and {section}")
        if former in rest:
            rest[section] = rest.pop(former)
    has_router = rest.get(ROUTER) not in (False, "false")
    if not has_router:
        del rest[ROUTER]
        if unused := [name for name in ROUTER_KEYS if name in rest]:
            raise OptionError(f"{unused[0]}: has no effect with `router: false`; set it where the router is started")
    shared = _take_shared(rest, flags)
    deployments = {
        name: read_deployment(rest.pop(section, None), section, DEFAULTS.get(name, {}))
        for name, section in SECTIONS.items()
    }
    given = {name for name in ("host", "port") if name in rest or flags.get(name) is not None}
    has_below = BELOW in as_section(rest.get(ROUTER), ROUTER) or flags.get(BELOW) is not None
    counted = [role for role in ROLES if deployments[role].has_size]
    cluster = _load(rest, flags, counted)
    leave_out = () if one_machine or has_below else (BELOW,)
    engines = {
        role: {**values, "device": _device(values.get("device"), deployments[role].replicas.num_gpus, auto_device)}
        for role, values in cluster.engine.items()
    }
    cluster = replace(cluster, router=_kept(cluster.router, leave_out), engine=engines)
    settings = RaySettings(
        cluster=cluster,
        shared=shared,
        deployments=deployments,
        has_router=has_router,
        host=cluster.cluster.host if "host" in given else None,
        port=cluster.cluster.port if "port" in given else 0,
        log=LogSettings(shared.log_level, shared.log_format),
    )
    check_deployments(settings)
    return settings


def _device(requested: Value, num_gpus: float | None, auto_device: str | None) -> str:
    """Return the device of a deployment's engines. It must be fixed before placement: Ray assigns GPUs by it."""
    if requested not in (None, "auto"):
        return str(requested)
    if num_gpus is not None:
        return "cuda" if num_gpus else "cpu"
    return auto_device or visible_gpus().auto_device


def _take_shared(rest: dict[str, object], flags: Mapping[str, object]) -> SharedOptions:
    options = options_of(SharedOptions)
    own = check_section(options, {name: rest.pop(name) for name in options if name in rest})
    shared = build(SharedOptions, own, pick(options, flags))
    if shared.registry is not None:
        parse_registry_url(shared.registry)
        if shared.registry_file is not None:
            raise OptionError("registry: set either registry or registry_file, not both")
    files = (shared.tls_cert, shared.tls_key, shared.tls_ca)
    if None in files and (any(files) or shared.tls_server_name):
        raise OptionError("tls_cert, tls_key, tls_ca: all three are needed for TLS")
    return shared


def _nested(arguments: dict[str, object]) -> dict[str, object]:
    """Move each `SECTION.KEY` argument, the form of a command line, into its section. Raises OptionError."""
    nested = {key: value for key, value in arguments.items() if "." not in key}
    for key, value in arguments.items():
        section, dot, name = key.partition(".")
        if not dot:
            continue
        inner = nested.get(section)
        if inner is not None and not isinstance(inner, Mapping):
            raise OptionError(f"{key}: {section} is already {shown(inner)}")
        known = as_section(inner, section)
        if name in known:
            raise OptionError(f"{key}: is set twice, here and in {section}")
        nested[section] = {**known, name: value}
    return nested


def _kept(router: Mapping[str, Value], leave_out: Collection[str]) -> dict[str, Value]:
    """Return the router's options in the form that Ray may store: API keys as digests, and no cache secret.

    Routers on Ray agree on a cache secret in the registry, or read it from the environment of their nodes.
    """
    kept = {name: value for name, value in router.items() if name not in (*leave_out, "cache_secret")}
    for name in ("api_key", "admin_api_key"):
        keys = kept.get(name)
        if isinstance(keys, tuple) and all(keys):  # the router rejects an empty key itself
            kept[name] = tuple(map(hidden, keys))
    return kept


def _load(content: Mapping[str, object], flags: Mapping[str, object], counted: Collection[Role]) -> ClusterSettings:
    """Read the cluster's settings through a temporary file."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump(dict(content), file)
        file.flush()
        return load_settings(Path(file.name), flags, counted)
