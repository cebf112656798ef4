"""Generator of helm/baton/README.md from the chart's schema, values and Chart.yaml; --check only compares.

Descriptions come from the schema, defaults from values.yaml.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[1] / "helm" / "baton"
LONGEST_DEFAULT = 60
INTRODUCTION = """\
# Baton's chart

{description}. Version {version} of the chart, {app_version} of Baton; Kubernetes {kube_version}.

```
helm install baton helm/baton --set model=Qwen/Qwen3-0.6B --set image.repository=registry.example.com/baton
```

This installs routers (a Deployment with an HPA, a Service), a `RayService` with a worker group for prefill and one for
decode, and a small Redis. It needs the KubeRay operator, 1.5.1 or later, and an image: there is no published one, so
build it from the Dockerfile. [docs/kubernetes.md](../../docs/kubernetes.md) leads from an empty cluster to a measured
token, and covers upgrades and uninstalling.

| example | what it is |
|---|---|
| `values-cpu.yaml` | the model that comes with Baton, on CPU nodes (kind, minikube) |
| `values-rdma.yaml` | KV by RDMA between GPU nodes |
| `values-moe.yaml` | a mixture of experts, spread over the decode workers |

These values can be changed without restarting a worker: the bounds of the pools (`replicas`, `minReplicas`,
`maxReplicas`), `slo`, and all of `autoscaling` except `enabled`, `clusterBudget` and `upscalingMode`. For nearly every
other change of workers, KubeRay builds a second cluster next to the first, which for a while takes twice the GPUs,
unless `ray.upgradeStrategy` is `None`.

Kubernetes' probes of a worker's pod check its Ray node. Serve detects an engine that does not step or does not load in
time (`healthCheckPeriodSeconds`, `startTimeoutSeconds`), and replaces that worker, but not the others of its pod.

`python scripts/chart_readme.py` generates this page from `values.schema.json` and `values.yaml`.

## Values
"""


def rows(schema: Mapping[str, Any], values: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield key, default and description of every value; a section comes before its values."""
    for name, found in schema["properties"].items():
        if name not in values:
            continue
        entry = resolved(found, root)
        if "properties" in entry:
            yield name, "", entry["description"]
            for key, default, meaning in rows(entry, values[name] or {}, root):
                yield f"{name}.{key}", default, meaning
        else:
            yield name, shown(values[name]), entry["description"]


def resolved(entry: Mapping[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema entry with its `$ref` resolved."""
    if "$ref" not in entry:
        return dict(entry)
    target: Any = root
    for part in entry["$ref"].removeprefix("#/").split("/"):
        target = target[part]
    return {**target, **entry}


def shown(value: object) -> str:
    """Return a short form of a default."""
    if value is None or value == "":
        return ""
    text = json.dumps(value, ensure_ascii=False).strip('"')
    return f"`{text}`" if len(text) <= LONGEST_DEFAULT else "see values.yaml"


def readme() -> str:
    """Return the page."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    introduction = INTRODUCTION.format(
        description=chart["description"],
        version=chart["version"],
        app_version=chart["appVersion"],
        kube_version=chart["kubeVersion"].removesuffix("-0"),
    )
    table = [
        f"| `{key}` | {default} | {meaning} |".replace("|  |", "| |")
        for key, default, meaning in rows(schema, values, schema)
    ]
    return "\n".join([introduction, "| key | default | meaning |", "|---|---|---|", *table, ""])


def main() -> int:
    """Run the script, and return the exit status."""
    file = CHART / "README.md"
    if "--check" not in sys.argv[1:]:
        file.write_text(readme(), encoding="utf-8")
        return 0
    if file.read_text(encoding="utf-8") == readme():
        return 0
    print(f"{file} does not match values.schema.json and values.yaml: run python scripts/chart_readme.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
