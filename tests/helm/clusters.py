"""A cluster as far as an install needs one: the server, a node, KubeRay's operator, and every object checked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.helm.api_server.api import Api, Writing
from tests.helm.api_server.builtin_resources import BUILT_IN
from tests.helm.api_server.controllers import ends_well, node
from tests.helm.api_server.errors import Json
from tests.helm.api_server.kuberay_operator import kuberay_operator
from tests.helm.api_server.resource_types import of_crd
from tests.helm.api_server.server import MINOR, ApiServer, serving
from tests.helm.schema import custom_resources
from tests.helm.schema.schemas import Invalid, UnknownKind, check

NAMESPACE = "serving"
DEFINITIONS = custom_resources.definitions()
ALL = (*BUILT_IN, *(of for definition in DEFINITIONS for of in of_crd(definition)))


def strict(written: Json, before: Json | None) -> None:
    """Raises ValueError for anything that Kubernetes' schemas or those of the custom resources do not know or allow."""
    try:
        check(written, f"v1.{MINOR}.0", before)
    except (Invalid, UnknownKind) as error:
        raise ValueError(str(error)) from error


def exit_code(pod: Json) -> int | None:
    """Ray's nodes run on, though nobody restarts them where they are."""
    return None if "ray.io/is-ray-node" in pod["metadata"].get("labels", {}) else ends_well(pod)


@contextmanager
def cluster(directory: Path, definitions: Sequence[Json] = DEFINITIONS) -> Iterator[ApiServer]:
    """With these definitions installed, and an empty namespace for a release."""
    types = (*BUILT_IN, *(of for definition in definitions for of in of_crd(definition)))
    controllers = [node(exit_code), *([kuberay_operator] if any(of.kind == "RayService" for of in types) else [])]
    with serving(directory, strict, types=types, namespaces=(NAMESPACE,), controllers=controllers) as running:
        running.call(lambda api: _install(api, definitions))
        yield running


def _install(api: Api, definitions: Sequence[Json]) -> None:
    of = api.types.of_kind("CustomResourceDefinition")
    for each in definitions:
        api.create(of, "", each, Writing("install"))
