"""The chart, rendered by Helm itself."""

import json
import pickle
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, _native

CHART = Path(__file__).resolve().parents[2] / "helm" / "baton"
KUBE_VERSION = "v1.34.0"
IMAGE = {"image": {"repository": "registry.example.com/baton"}}
MODEL = {"model": "Qwen/Qwen3-0.6B", **IMAGE}  # the values that an install needs
EXAMPLES = ("cpu", "rdma", "moe")  # values-NAME.yaml beside the chart's own

Manifest = dict[str, Any]

# What a cluster with all operators offers.
APIS = (
    "ray.io/v1",
    "ray.io/v1/RayService",
    "ray.io/v1/RayCluster",
    "monitoring.coreos.com/v1",
    "monitoring.coreos.com/v1/ServiceMonitor",
    "monitoring.coreos.com/v1/PodMonitor",
    "monitoring.coreos.com/v1/PrometheusRule",
    "keda.sh/v1alpha1/ScaledObject",
    "gateway.networking.k8s.io/v1/HTTPRoute",
    "gateway.networking.k8s.io/v1/BackendTLSPolicy",
    "cert-manager.io/v1/Certificate",
)


class UniqueKeys(yaml.CSafeLoader):
    """YAML in which a key that stands twice in a mapping is an error, as it is for Kubernetes' API server."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping. Raises ConstructorError."""
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen and key != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


@lru_cache(maxsize=1)
def chart() -> Chart:
    """The chart as it stands in the repository."""
    return Chart.load(CHART)


def example(name: str) -> Manifest:
    """The values of `values-NAME.yaml`, and the image, which only its user knows."""
    return merged(IMAGE, yaml.safe_load((CHART / f"values-{name}.yaml").read_text(encoding="utf-8")))


def merged(*layers: Mapping[str, Any]) -> Manifest:
    """Values over values, as several `-f` have it: mappings are merged, all else is replaced."""
    result: Manifest = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            nested = isinstance(value, Mapping) and isinstance(below, Mapping)
            result[key] = merged(below, value) if nested else deepcopy(value)  # type: ignore[arg-type]
    return result


def render_files(
    values: Mapping[str, Any],
    *,
    kube_version: str = KUBE_VERSION,
    api_versions: Sequence[str] = APIS,
    name: str = "baton",
    namespace: str = "serving",
    is_anew: bool = False,
) -> dict[str, str]:
    """What every template comes to: each time the same passwords, unless it `is_anew`.

    Raises HelmError with the template's own words.
    """
    options = {"name": name, "namespace": namespace, "kube_version": kube_version, "api_versions": list(api_versions)}
    told = json.dumps(values), json.dumps(options)
    files: dict[str, str] = json.loads(_rendered.__wrapped__(*told) if is_anew else _rendered(*told))
    return files


def render(values: Mapping[str, Any], **options: Any) -> list[Manifest]:
    """All objects, in no order, the caller's own; `options` as of `render_files`. Raises HelmError."""
    files = render_files(values, **options)
    texts = tuple(text for file, text in files.items() if file.endswith(".yaml"))
    objects: list[Manifest] = pickle.loads(_parsed(texts))
    return objects


@lru_cache(maxsize=256)
def _rendered(values: str, options: str) -> str:
    """Most tests look at the same few values: Helm takes 25 ms each time."""
    return str(_native.call_string("helm_render", chart()._raw(), values, options))


@lru_cache(maxsize=256)
def _parsed(texts: tuple[str, ...]) -> bytes:
    """The files' objects, pickled: YAML takes fifty times as long to read."""
    return pickle.dumps([each for text in texts for each in yaml.load_all(text, UniqueKeys) if each is not None])


def only(objects: Sequence[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The one object of a kind (and name)."""
    found = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''}: {[each['metadata']['name'] for each in found]}"
    return found[0]


def serve_config(objects: Sequence[Manifest]) -> Manifest:
    """The RayService's Serve config, read."""
    config: Manifest = yaml.load(only(objects, "RayService")["spec"]["serveConfigV2"], UniqueKeys)
    return config


def scaling_settings(objects: Sequence[Manifest]) -> Manifest:
    """What the planner reads."""
    [config] = [each for each in objects if each["kind"] == "ConfigMap" and "settings.yaml" in each.get("data", {})]
    settings: Manifest = yaml.safe_load(config["data"]["settings.yaml"])
    return settings


def pod_templates(objects: Sequence[Manifest]) -> dict[str, Manifest]:
    """The templates of all pods, by the kind and name of what makes them."""
    templates: dict[str, Manifest] = {}
    for each in objects:
        name = f"{each['kind']}/{each['metadata']['name']}"
        match each["kind"]:
            case "Deployment" | "Job":
                templates[name] = each["spec"]["template"]
            case "Pod":
                templates[name] = {"metadata": each["metadata"], "spec": each["spec"]}
            case "RayService":
                cluster = each["spec"]["rayClusterConfig"]
                templates[f"{name}/head"] = cluster["headGroupSpec"]["template"]
                for group in cluster["workerGroupSpecs"]:
                    templates[f"{name}/{group['groupName']}"] = group["template"]
    return templates


def containers(template: Manifest) -> list[Manifest]:
    """All containers of a pod, the first ones too."""
    spec = template["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]
