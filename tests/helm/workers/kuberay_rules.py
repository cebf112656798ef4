"""What KubeRay's operator itself refuses, beyond its CRDs.

(controllers/ray/utils/validation.go of 1.6, and BuildServeService in controllers/ray/common/service.go.)
"""

import re
from typing import Any

MAX_NAME_LENGTH = 47
DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
UPGRADES = ("NewCluster", "NewClusterWithIncrementalUpgrade", "None")
RESOURCE_PARAMETERS = ("num-cpus", "num-gpus", "memory", "resources")
REDIS_PARAMETERS = ("redis-username", "redis-password")
ALWAYS_ITS_OWN = ("RAY_REDIS_ADDRESS", "REDIS_USERNAME")
SERVE_PORT = "serve"
FIRST_WITH_TOKENS = (2, 52, 0)


def faults(service: dict[str, Any]) -> list[str]:
    """Why the operator would not take this RayService."""
    name, spec = service["metadata"]["name"], service["spec"]["rayClusterConfig"]
    found = []
    if len(name) > MAX_NAME_LENGTH or not DNS_1035.fullmatch(name):
        found.append(f"the name {name} is too long or no DNS-1035 label")
    found += _service_faults(service["spec"])
    groups = {"Head": spec["headGroupSpec"], **{each["groupName"]: each for each in spec["workerGroupSpecs"]}}
    if len(groups) != len(spec["workerGroupSpecs"]) + 1:
        found.append("two groups have one name")
    autoscaled = spec.get("enableInTreeAutoscaling", False)
    v2 = autoscaled and spec.get("autoscalerOptions", {}).get("version") == "v2"
    for group_name, group in groups.items():
        found += [f"{group_name}: {fault}" for fault in _group_faults(group, v2)]
    for group in spec["workerGroupSpecs"]:
        if group["minReplicas"] > group["maxReplicas"]:
            found.append(f"{group['groupName']}: minReplicas is more than maxReplicas")
        if "idleTimeoutSeconds" in group and not v2:
            found.append(f"{group['groupName']}: idleTimeoutSeconds needs autoscaler v2")
        if group.get("suspend") and autoscaled:
            found.append(f"{group['groupName']}: it cannot be suspended with the autoscaler on")
    found += _head_faults(spec, v2)
    if not has_serve_port(spec):
        found.append("the head names its ports, and none of them serve: the operator can make no Service of it")
    version = tuple(map(int, spec.get("rayVersion", "0.0.0").split(".")))
    if spec.get("authOptions", {}).get("mode") == "token" and version < FIRST_WITH_TOKENS:
        found.append("tokens need rayVersion 2.52.0 or later")
    return found


def has_serve_port(spec: dict[str, Any]) -> bool:
    """Whether the operator finds the port of the Service that a RayService has to get, before it is ever active.

    It knows one by itself only for a head that names no port at all.
    """
    ports = spec["headGroupSpec"]["template"]["spec"]["containers"][0].get("ports")
    return not ports or any(each.get("name") == SERVE_PORT for each in ports)


def _service_faults(spec: dict[str, Any]) -> list[str]:
    cluster, found = spec["rayClusterConfig"], []
    if "upgradeStrategy" in cluster:
        found.append("a RayService's cluster has no upgradeStrategy of its own")
    if spec.get("upgradeStrategy", {}).get("type", "None") not in UPGRADES:
        found.append("the upgradeStrategy is none")
    if cluster.get("authOptions", {}).get("enableK8sTokenAuth"):
        found.append("enableK8sTokenAuth is for RayClusters alone")
    return found


def _group_faults(group: dict[str, Any], v2: bool) -> list[str]:
    parameters, found = group["rayStartParams"], []
    if group.get("resources") and any(parameters.get(name) for name in RESOURCE_PARAMETERS):
        found.append("resources are set in rayStartParams and in resources")
    if "labels" in parameters:
        found.append("labels belong into the group's labels")
    found += [
        f"{value} is no label's value" for value in group.get("labels", {}).values() if not LABEL_VALUE.fullmatch(value)
    ]
    if v2 and group["template"]["spec"].get("restartPolicy", "Never") != "Never":
        found.append("autoscaler v2 needs restartPolicy Never")
    return found


def _head_faults(spec: dict[str, Any], v2: bool) -> list[str]:
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]
    names = {each["name"] for each in head.get("env", ())}
    own = (*ALWAYS_ITS_OWN, *(["REDIS_PASSWORD"] if "gcsFaultToleranceOptions" in spec else []))
    found = [f"the head's {name} is the operator's own" for name in own if name in names]
    parameters = spec["headGroupSpec"]["rayStartParams"]
    found += [f"{name} belongs into gcsFaultToleranceOptions" for name in REDIS_PARAMETERS if name in parameters]
    if v2 and "RAY_enable_autoscaler_v2" in names:
        found.append("the autoscaler's version is given twice")
    return found
