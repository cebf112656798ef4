"""Options of the autoscaling policy: `policy_kwargs` in a Serve config file."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from baton.deployment.autoscaling.settings import SLO, PoolLimits, ScalingSettings
from baton.deployment.kubernetes.settings import KubernetesSettings
from baton.rpc.tls import TlsFiles
from baton.settings.config_file import read_config_file
from baton.settings.registry_url import parse_registry_url
from baton.settings.slo import parse_slo
from baton.settings.values import OptionError

logger = logging.getLogger("ray.serve.baton")  # child of the logger whose file Serve shows

Read = Callable[[Mapping[str, object]], ScalingSettings]  # raises ValueError for invalid values


class ScalingFile:
    """Last valid content of the settings file.

    Serve restarts every replica when `policy_kwargs` change, but not when a file named there changes.
    """

    def __init__(self, path: Path, given: Mapping[str, object], read: Read) -> None:
        """Read the file, whose keys override `given`. Raises ValueError if it is invalid."""
        self._path = path
        self._given = given
        self._read = read
        self._error = ""
        self._content = read_config_file(path)
        self._settings = read({**given, **self._content})

    def read(self) -> ScalingSettings:
        """Return the current settings: the same object as before unless they have changed."""
        try:
            content = read_config_file(self._path)
            if content != self._content:
                self._settings, self._content = self._read({**self._given, **content}), content
                logger.info("read new settings from %s", self._path)
            self._set_error("")
        except ValueError as error:
            self._set_error(str(error))
        return self._settings

    def _set_error(self, error: str) -> None:
        """Set the error, and log it if it is new."""
        if error and error != self._error:
            logger.warning("keeping the previous settings: %s: %s", self._path, error)
        self._error = error


SECTIONS: dict[str, type[SLO] | type[PoolLimits]] = {"slo": SLO, "prefill": PoolLimits, "decode": PoolLimits}
TLS = ("tls_cert", "tls_key", "tls_ca", "tls_server_name")  # files on the head node, for changes of workers' roles
OWN = ("registry", "registry_file", "model", "kubernetes", "settings_file", *TLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """Source of the pools' state, and limits of their sizes."""

    registry: str = field(repr=False)  # URL, may contain a password
    model: str | None  # name at the routers; None: the only one
    settings: ScalingSettings
    file: ScalingFile | None  # source of changes to `settings`; None: they do not change
    kubernetes: KubernetesSettings | None  # None: the cluster's capacity is not read
    tls: TlsFiles | None  # of calls to workers; None: plaintext


def read_options(values: Mapping[str, object]) -> ScalingOptions:
    """Read and check the options. Raises ValueError with the first invalid option, or OSError for a file.

    Keys that are not in `OWN` are fields of `ScalingSettings`, here or in the `settings_file`. Put a URL with a
    password into `registry_file`, because Serve shows the values to all its users.
    """
    rest = dict(values)
    registry, registry_file, model, kubernetes, settings_file, *tls = (rest.pop(name, None) for name in OWN)
    if (registry is None) == (registry_file is None):
        raise ValueError("registry: set either registry to the URL, or registry_file to a file with the URL")
    if registry is None:
        registry = Path(str(registry_file)).read_text(encoding="utf-8").strip()
    parse_registry_url(str(registry))
    if kubernetes is not None and not isinstance(kubernetes, Mapping):
        raise ValueError("kubernetes: must be a mapping")
    cluster = None if kubernetes is None else KubernetesSettings.of(kubernetes)

    def read(values: Mapping[str, object]) -> ScalingSettings:
        settings = read_settings(values)
        if cluster is not None:
            cluster.check_pod_sizes(settings)
        return settings

    file = None if settings_file is None else ScalingFile(Path(str(settings_file)), rest, read)
    return ScalingOptions(
        registry=str(registry),
        model=None if model is None else str(model),
        settings=read(rest) if file is None else file.read(),
        file=file,
        kubernetes=cluster,
        tls=_read_tls(*(None if each is None else str(each) for each in tls)),
    )


def _read_tls(cert: str | None, key: str | None, ca: str | None, server_name: str | None) -> TlsFiles | None:
    """Return the files, which are read when a worker is called: sizes do not depend on them. Raises ValueError."""
    if cert is None and key is None and ca is None and server_name is None:
        return None
    if cert is None or key is None or ca is None:
        raise ValueError("tls_cert, tls_key, tls_ca: all three are needed for TLS")
    return TlsFiles(cert, key, ca, server_name)


def read_settings(values: Mapping[str, object]) -> ScalingSettings:
    """Read the planner's settings. Raises ValueError with the first invalid one."""
    _check_names("", values, ScalingSettings)
    if isinstance(slo := values.get("slo"), str):
        try:
            values = {**values, "slo": dataclasses.asdict(SLO.of(parse_slo(slo)))}
        except OptionError as error:
            raise ValueError(f"slo: {error}") from error
    for name, kind in SECTIONS.items():
        _check_names(f"{name}.", values.get(name, {}), kind)
    try:
        settings = TypeAdapter(ScalingSettings).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    settings.check()
    if settings.flip_s is not None and settings.prefill.gpus_per_replica != settings.decode.gpus_per_replica:
        raise ValueError(
            f"flip_s: workers can change their role only if both pools have equal gpus_per_replica, which are "
            f"{settings.prefill.gpus_per_replica} and {settings.decode.gpus_per_replica}; remove it"
        )
    return settings


def _check_names(where: str, values: object, kind: type[ScalingSettings | SLO | PoolLimits]) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where.rstrip('.')}: must be a mapping")
    known = [each.name for each in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            raise ValueError(f"{where}{name}: unknown option; known are {', '.join(known)}")
