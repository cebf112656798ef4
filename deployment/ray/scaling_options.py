"""What a policy of the pools' sizes is told, as a Serve config file has it in `policy_kwargs`."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from baton.deployment.autoscaling.settings import SLO, PoolLimits, ScalingSettings
from baton.deployment.kubernetes.settings import KubernetesSettings
from baton.settings.config_file import read_config_file
from baton.settings.registry_url import parse_registry_url
from baton.settings.slo import parse_slo
from baton.settings.values import OptionError

logger = logging.getLogger("ray.serve.baton")  # below the logger whose file Serve shows

Read = Callable[[Mapping[str, object]], ScalingSettings]  # raises ValueError for what makes no sense


class ScalingFile:
    """Owns what the file said when it last made sense.

    Serve restarts every replica when `policy_kwargs` change, and none when a file does that is named there.
    """

    def __init__(self, path: Path, given: Mapping[str, object], read: Read) -> None:
        """The file's keys win over those given. Raises ValueError for a file that makes no sense now."""
        self._path = path
        self._given = given
        self._read = read
        self._error = ""
        self._content = read_config_file(path)
        self._settings = read({**given, **self._content})

    def read(self) -> ScalingSettings:
        """The settings as the file has them now: the same object as before, unless they are others."""
        try:
            content = read_config_file(self._path)
            if content != self._content:
                self._settings, self._content = self._read({**self._given, **content}), content
                logger.info("the settings are those of %s as it is now", self._path)
            self._tell("")
        except ValueError as error:
            self._tell(str(error))
        return self._settings

    def _tell(self, error: str) -> None:
        """Says a new error once."""
        if error and error != self._error:
            logger.warning("the settings stay as they were: %s: %s", self._path, error)
        self._error = error


SECTIONS: dict[str, type[SLO] | type[PoolLimits]] = {"slo": SLO, "prefill": PoolLimits, "decode": PoolLimits}
OWN = ("registry", "registry_file", "model", "kubernetes", "settings_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingOptions:
    """Where the pools are seen, and how large they may be."""

    registry: str = field(repr=False)  # URL, perhaps with a password
    model: str | None  # as routers call it; None: the only one there
    settings: ScalingSettings
    file: ScalingFile | None  # where they may change; None: they do not
    kubernetes: KubernetesSettings | None  # how the cluster is asked what it has; None: it is not


def read_options(values: Mapping[str, object]) -> ScalingOptions:
    """The options, checked. Raises ValueError naming the first that makes no sense, and OSError for a file.

    What is not in `OWN` is a field of `ScalingSettings`, here or in the `settings_file`. A URL with a password belongs
    into a file: Serve shows the values to everybody.
    """
    rest = dict(values)
    registry, registry_file, model, kubernetes, settings_file = (rest.pop(name, None) for name in OWN)
    if (registry is None) == (registry_file is None):
        raise ValueError("registry: give the URL, or registry_file with the name of a file that holds it")
    if registry is None:
        registry = Path(str(registry_file)).read_text(encoding="utf-8").strip()
    parse_registry_url(str(registry))
    if kubernetes is not None and not isinstance(kubernetes, Mapping):
        raise ValueError("kubernetes: must be a mapping")
    cluster = None if kubernetes is None else KubernetesSettings.of(kubernetes)

    def read(values: Mapping[str, object]) -> ScalingSettings:
        settings = read_settings(values)
        if cluster is not None:
            cluster.check_beside(settings)
        return settings

    file = None if settings_file is None else ScalingFile(Path(str(settings_file)), rest, read)
    return ScalingOptions(
        registry=str(registry),
        model=None if model is None else str(model),
        settings=read(rest) if file is None else file.read(),
        file=file,
        kubernetes=cluster,
    )


def read_settings(values: Mapping[str, object]) -> ScalingSettings:
    """The planner's settings. Raises ValueError naming the first that makes no sense."""
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
    if settings.flip_s is not None:
        raise ValueError("flip_s: replicas of Ray Serve cannot change their role")
    return settings


def _check_names(where: str, values: object, kind: type[ScalingSettings | SLO | PoolLimits]) -> None:
    if not isinstance(values, Mapping):
        raise ValueError(f"{where.rstrip('.')}: must be a mapping")
    known = [each.name for each in dataclasses.fields(kind)]
    for name in values:
        if name not in known:
            raise ValueError(f"{where}{name}: unknown option; known are {', '.join(known)}")
