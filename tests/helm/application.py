"""What Serve, Ray's operator and our own code make of the chart's objects."""

import yaml

from baton.deployment.ray.arguments import read_ray_settings
from baton.deployment.ray.settings import RaySettings
from tests.helm import charts


def ray_cluster(objects: list[charts.Manifest]) -> charts.Manifest:
    """The RayCluster that the operator makes of the RayService."""
    service = charts.only(objects, "RayService")
    metadata = {"name": f"{service['metadata']['name']}-abcde", "namespace": service["metadata"]["namespace"]}
    spec = service["spec"]["rayClusterConfig"]
    return {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec}


def settings_of(objects: list[charts.Manifest]) -> RaySettings:
    """The application's settings, as it reads them itself."""
    [application] = charts.serve_config(objects)["applications"]
    return read_ray_settings(application["args"], {})


def snake(name: str) -> str:
    """camelCase as Python has it."""
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name)


def without_replicas(objects: list[charts.Manifest]) -> charts.Manifest:
    """The RayCluster's spec, as the operator compares it."""
    spec = yaml.safe_load(yaml.safe_dump(ray_cluster(objects)["spec"]))
    for group in spec["workerGroupSpecs"]:
        for name in ("replicas", "minReplicas", "maxReplicas"):
            group.pop(name, None)
    assert isinstance(spec, dict)
    return spec
