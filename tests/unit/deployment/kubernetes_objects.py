"""Nodes and pods as the API server writes them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from baton.deployment.autoscaling.settings import PoolLimits, ScalingSettings
from baton.deployment.kubernetes.settings import KubernetesSettings, PoolPods, Toleration

Json = dict[str, Any]

PAGE = Path(__file__).parents[3] / "docs" / "kubernetes_budget.md"
RESOURCE = "nvidia.com/gpu"
NAMESPACE = "serving"
PREFILL, DECODE = {"app": "baton", "pool": "prefill"}, {"app": "baton", "pool": "decode"}
TOLERATED = {"key": RESOURCE, "effect": "NoSchedule"}


def kubernetes_settings(prefill: int = 1, decode: int = 2, **changes: Any) -> KubernetesSettings:
    """Return settings of pods with these numbers of GPUs, which tolerate the usual taint of GPU nodes."""
    tolerations = (Toleration(key=RESOURCE, operator="Exists"),)
    return KubernetesSettings(
        prefill=PoolPods(labels=PREFILL, gpus_per_pod=prefill, tolerations=tolerations),
        decode=PoolPods(labels=DECODE, gpus_per_pod=decode, tolerations=tolerations),
        **changes,
    )


def scaling_settings(budget_gpus: int = 100, prefill: int = 1, decode: int = 2) -> ScalingSettings:
    """Return settings of replicas with these numbers of GPUs."""
    return ScalingSettings(
        budget_gpus=budget_gpus,
        prefill=PoolLimits(gpus_per_replica=prefill),
        decode=PoolLimits(gpus_per_replica=decode),
    )


def node(
    name: str,
    gpus: str | None = "8",
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (TOLERATED,),
    ready: str | None = "True",
    cordoned: bool = False,
    deleted: bool = False,
) -> Json:
    """Return a node; `ready` None: it has no such condition."""
    metadata: Json = {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}, "uid": "1"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec: Json = {"podCIDR": "10.0.0.0/24", "taints": [dict(each) for each in taints]}
    if cordoned:
        spec["unschedulable"] = True
    conditions = [{"type": "MemoryPressure", "status": "False"}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"})
    allocatable = {"cpu": "95500m", "memory": "1055762868Ki", "pods": "110"}
    if gpus is not None:
        allocatable[RESOURCE] = gpus
    status = {"allocatable": allocatable, "conditions": conditions, "aFieldOfLaterVersions": {"x": [1]}}
    return {"metadata": metadata, "spec": spec, "status": status}


def container(gpus: str | None = None, restart_policy: str | None = None) -> Json:
    """Return a container of a pod."""
    requests = {"cpu": "500m"} | ({} if gpus is None else {RESOURCE: gpus})
    written: Json = {"name": "main", "image": "baton", "resources": {"requests": requests, "limits": requests}}
    return written if restart_policy is None else {**written, "restartPolicy": restart_policy}


def pod(
    name: str,
    labels: Mapping[str, str],
    gpus: str | None = "1",
    on: str | None = None,
    phase: str | None = None,
    namespace: str = NAMESPACE,
    spec: Json | None = None,
    status: Json | None = None,
    deleted: bool = False,
) -> Json:
    """Return a pod that runs, or is pending if it is `on` no node."""
    metadata: Json = {"name": name, "namespace": namespace, "labels": dict(labels)}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    written: Json = {"containers": [container(gpus)], **(spec or {})}
    if on is not None:
        written["nodeName"] = on
    state = {"phase": phase or ("Pending" if on is None else "Running"), **(status or {})}
    return {"metadata": metadata, "spec": written, "status": state}


def page_blocks() -> list[list[Any]]:
    """Return the documents of each YAML block of the page."""
    return [list(yaml.safe_load_all(text)) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)]
