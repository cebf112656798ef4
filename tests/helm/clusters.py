"""A cluster as far as an install needs one: the server, a node, KubeRay's operator, and every object checked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.helm.api_server.builtin_resources import BUILT_IN, KUBERAY, OPTIONAL
from tests.helm.api_server.controllers import ends_well, node
from tests.helm.api_server.errors import Json
from tests.helm.api_server.kuberay_operator import kuberay_operator
from tests.helm.api_server.resource_types import ResourceType
from tests.helm.api_server.server import MINOR, ApiServer, serving
from tests.helm.schemas import Invalid, UnknownKind, check

NAMESPACE = "serving"
ALL = (*BUILT_IN, *KUBERAY, *OPTIONAL)


def strict(written: Json) -> None:
    """Raises ValueError for anything that Kubernetes' schemas or those of the custom resources do not know."""
    try:
        check(written, f"v1.{MINOR}.0")
    except (Invalid, UnknownKind) as error:
        raise ValueError(str(error)) from error


def exit_code(pod: Json) -> int | None:
    """Ray's nodes run on, though nobody restarts them where they are."""
    return None if "ray.io/is-ray-node" in pod["metadata"].get("labels", {}) else ends_well(pod)


@contextmanager
def cluster(directory: Path, types: Sequence[ResourceType] = ALL) -> Iterator[ApiServer]:
    """With an empty namespace for a release."""
    controllers = [node(exit_code), *([kuberay_operator] if KUBERAY[0] in types else [])]
    with serving(directory, strict, types=types, namespaces=(NAMESPACE,), controllers=controllers) as running:
        yield running
