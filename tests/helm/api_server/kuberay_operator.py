"""A stand-in for the KubeRay operator: clusters from services, pods from clusters.

It follows the operator in what a chart and Ray's autoscaler depend on:

- a RayService gets a second cluster when its `rayClusterConfig` differs in more than the sizes of groups (or in groups
  added at the end), unless its upgrade strategy is None;
- new sizes alone are *not* passed on to the cluster that runs: its groups belong to the autoscaler from then on;
- groups have `max(replicas, minReplicas)` pods, at most `maxReplicas`; with the autoscaler on, pods go only by name;
- a RayService whose head names ports, but none as `serve`, comes to nothing;
- the head's service account gets the rights that the autoscaler needs, and must exist if it is named.
"""

import copy
import hashlib
import json
from dataclasses import dataclass

from tests.helm.api_server.api import Api, Writing
from tests.helm.api_server.errors import ApiError, Json
from tests.helm.api_server.store import ObjectKey
from tests.helm.workers.kuberay_rules import has_serve_port

SERVICE, NUM_GROUPS = "ray.io/originated-from-cr-name", "ray.io/num-worker-groups"
HASH = "ray.io/hash-without-replicas-and-workers-to-delete"
HEAD_GROUP = "headgroup"
HOW = Writing("kuberay-operator")
AUTOSCALER_RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "patch"]},
]


async def kuberay_operator(api: Api) -> None:
    """Runs beside the server."""
    num_seen = 0
    while not api.store.ended:
        await api.store.next_change(num_seen)
        num_seen = len(api.store.changes)
        operator = _Operator(api)
        operator.care_for_services()
        operator.care_for_clusters()


def without_sizes(config: Json, num_groups: int | None = None) -> Json:
    """What makes a second cluster necessary when it changes, with the first `num_groups` groups alone."""
    muted = copy.deepcopy(config)
    muted.pop("upgradeStrategy", None)
    muted["workerGroupSpecs"] = muted.get("workerGroupSpecs", [])[:num_groups]
    for group in muted["workerGroupSpecs"]:
        for name in ("replicas", "minReplicas", "maxReplicas"):
            group.pop(name, None)
        group.get("scaleStrategy", {}).pop("workersToDelete", None)
        if not group.get("scaleStrategy"):
            group.pop("scaleStrategy", None)
    return muted


def _hash(config: Json, num_groups: int | None = None) -> str:
    written = json.dumps(without_sizes(config, num_groups), sort_keys=True)
    return hashlib.sha1(written.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class _Operator:
    api: Api

    def care_for_services(self) -> None:
        for service in self._all("RayService"):
            name, config = service["metadata"]["name"], service["spec"]["rayClusterConfig"]
            if not has_serve_port(config):
                raise RuntimeError(f"RayService {name} cannot be active: its head has no port named serve")
            clusters = [each for each in self._all("RayCluster") if each["metadata"]["labels"].get(SERVICE) == name]
            clusters = [each for each in clusters if each["metadata"]["namespace"] == service["metadata"]["namespace"]]
            keeps_cluster = service["spec"].get("upgradeStrategy", {}).get("type") == "None"
            if not clusters or not (keeps_cluster or any(_fits(each, config) for each in clusters)):
                self._build_cluster(service, config)

    def _build_cluster(self, service: Json, config: Json) -> None:
        metadata = {
            "generateName": f"{service['metadata']['name']}-",
            "labels": {SERVICE: service["metadata"]["name"]},
            "annotations": {HASH: _hash(config), NUM_GROUPS: str(len(config.get("workerGroupSpecs", [])))},
            "ownerReferences": [_owner(service)],
        }
        spec = copy.deepcopy(config)
        for group in spec.get("workerGroupSpecs", []):
            group.setdefault("scaleStrategy", {})  # as the operator's own types write it; Ray replaces what is there
        self._create(
            {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": metadata, "spec": spec},
            service["metadata"]["namespace"],
        )

    def care_for_clusters(self) -> None:
        for cluster in self._all("RayCluster"):
            self._grant_rights(cluster)
            pods = self._pods(cluster)
            if not any(each["metadata"]["labels"]["ray.io/node-type"] == "head" for each in pods):
                self._create_pod(cluster, cluster["spec"]["headGroupSpec"], HEAD_GROUP, "head")
            for group in cluster["spec"].get("workerGroupSpecs", []):
                self._care_for_group(cluster, group, pods)

    def _care_for_group(self, cluster: Json, group: Json, pods: list[Json]) -> None:
        there = {
            each["metadata"]["name"]
            for each in pods
            if each["metadata"]["labels"]["ray.io/group"] == group["groupName"]
        }
        namespace = cluster["metadata"]["namespace"]
        for name in there & set(group.get("scaleStrategy", {}).get("workersToDelete", ())):
            self.api.delete(self._key("Pod", namespace, name), {})
            there.remove(name)
        least, most = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
        wanted = min(max(group.get("replicas", least), least), most) * group.get("numOfHosts", 1)
        for _ in range(wanted - len(there)):
            self._create_pod(cluster, group, group["groupName"], "worker")

    def _grant_rights(self, cluster: Json) -> None:
        if not cluster["spec"].get("enableInTreeAutoscaling"):
            return
        name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
        if self.api.store.get(self._key("Role", namespace, name)) is not None:
            return
        account = cluster["spec"]["headGroupSpec"]["template"]["spec"].get("serviceAccountName")
        metadata = {"name": name, "ownerReferences": [_owner(cluster)]}
        if account is None:
            account = name
            self._create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}, namespace)
        self.api.get(self._key("ServiceAccount", namespace, account))
        group = "rbac.authorization.k8s.io"
        api_version = f"{group}/v1"
        role = {"apiVersion": api_version, "kind": "Role", "metadata": metadata, "rules": AUTOSCALER_RULES}
        self._create(role, namespace)
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        reference = {"apiGroup": group, "kind": "Role", "name": name}
        binding = {"apiVersion": api_version, "kind": "RoleBinding", "metadata": metadata}
        self._create({**binding, "roleRef": reference, "subjects": [subject]}, namespace)

    def _create_pod(self, cluster: Json, group: Json, name: str, node_type: str) -> None:
        template = copy.deepcopy(group["template"])
        labels = {"ray.io/cluster": cluster["metadata"]["name"], "ray.io/group": name, "ray.io/node-type": node_type}
        metadata = {
            **template.get("metadata", {}),
            "generateName": f"{cluster['metadata']['name']}-{name}-{node_type}-"[:58],
            "ownerReferences": [_owner(cluster)],
        }
        metadata["labels"] = {**metadata.get("labels", {}), **labels, "ray.io/is-ray-node": "yes"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        self._create(pod, cluster["metadata"]["namespace"])

    def _pods(self, cluster: Json) -> list[Json]:
        name = cluster["metadata"]["name"]
        pods = self.api.store.items(self.api.types.of_kind("Pod"), cluster["metadata"]["namespace"])
        return [each for each in pods if each["metadata"].get("labels", {}).get("ray.io/cluster") == name]

    def _all(self, kind: str) -> list[Json]:
        return self.api.store.items(self.api.types.of_kind(kind))

    def _key(self, kind: str, namespace: str, name: str) -> ObjectKey:
        return ObjectKey(self.api.types.of_kind(kind), namespace, name)

    def _create(self, body: Json, namespace: str) -> None:
        try:
            self.api.create(self.api.types.of_kind(body["kind"]), namespace, body, HOW)
        except ApiError as error:
            name = body["metadata"].get("name") or body["metadata"]["generateName"]
            raise RuntimeError(f"{body['kind']} {name} cannot be created: {error}") from error


def _fits(cluster: Json, config: Json) -> bool:
    """Whether the cluster can serve as the one of that configuration."""
    annotations = cluster["metadata"]["annotations"]
    num_groups = int(annotations[NUM_GROUPS])
    if len(config.get("workerGroupSpecs", [])) < num_groups:
        return False
    return bool(annotations[HASH] == _hash(config, num_groups))


def _owner(of: Json) -> Json:
    metadata = of["metadata"]
    owner: Json = {"apiVersion": of["apiVersion"], "kind": of["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**owner, "controller": True, "blockOwnerDeletion": True}
