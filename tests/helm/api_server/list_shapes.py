"""Which parts of an object are merged field by field, and which are one value.

Kubernetes says so in the schema of every kind. These are its words for what a chart writes; whatever is not named here
is one value if it is a list, and merged if it is a map.
"""

from collections.abc import Sequence

from tests.helm.api_server.errors import Json

Path = tuple[str, ...]  # elements as in managedFields: "f:spec", 'k:{"name":"a"}', 'v:"x"'

MERGED_BY = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
}
SETS = {("metadata", "finalizers")}
ONE_VALUE = {
    "selector",
    "labelSelector",
    "podSelector",
    "namespaceSelector",
    "scaleTargetRef",
    "roleRef",
    "secretKeyRef",
    "configMapKeyRef",
    "fieldRef",
    "resourceFieldRef",
}
DEFAULT_OF_KEY = {"protocol": "TCP"}


def names(path: Path) -> tuple[str, ...]:
    """The fields' names alone."""
    return tuple(each[2:] for each in path if each.startswith("f:"))


def list_keys(path: Path) -> tuple[str, ...] | None:
    """What items of the list there are told apart by; None: it is one value."""
    fields = names(path)
    if fields[-1] == "ports":
        if len(fields) > 1 and fields[-2] in ("containers", "initContainers"):
            return ("containerPort", "protocol")
        return ("port", "protocol") if fields == ("spec", "ports") else None
    return MERGED_BY.get(fields[-1])


def is_set(path: Path) -> bool:
    """Whether the list there holds plain values, each for itself."""
    return names(path) in SETS


def is_one_value(path: Path) -> bool:
    """Whether the map there is never merged."""
    fields = names(path)
    return bool(fields) and fields[-1] in ONE_VALUE


def key_of(item: Json, keys: Sequence[str]) -> Json:
    """What tells the item apart. Raises KeyError if that is missing."""
    return {key: item[key] if key in item else DEFAULT_OF_KEY[key] for key in sorted(keys)}
