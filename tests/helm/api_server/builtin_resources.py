"""The kinds that every cluster has, and those of KubeRay."""

from tests.helm.api_server.resource_types import ResourceType

BUILT_IN = (
    ResourceType("", "v1", "Namespace", "namespaces", namespaced=False, has_status=True, short_names=("ns",)),
    ResourceType("", "v1", "Node", "nodes", namespaced=False, has_status=True, short_names=("no",)),
    ResourceType("", "v1", "Pod", "pods", has_status=True, short_names=("po",)),
    ResourceType("", "v1", "Service", "services", has_status=True, short_names=("svc",)),
    ResourceType("", "v1", "Endpoints", "endpoints", short_names=("ep",)),
    ResourceType("", "v1", "ConfigMap", "configmaps", short_names=("cm",)),
    ResourceType("", "v1", "Secret", "secrets"),
    ResourceType("", "v1", "ServiceAccount", "serviceaccounts", short_names=("sa",)),
    ResourceType("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", has_status=True, short_names=("pvc",)),
    ResourceType("", "v1", "Event", "events", short_names=("ev",)),
    ResourceType("apps", "v1", "Deployment", "deployments", has_status=True, has_scale=True, short_names=("deploy",)),
    ResourceType("apps", "v1", "ReplicaSet", "replicasets", has_status=True, has_scale=True, short_names=("rs",)),
    ResourceType("apps", "v1", "StatefulSet", "statefulsets", has_status=True, has_scale=True, short_names=("sts",)),
    ResourceType("apps", "v1", "DaemonSet", "daemonsets", has_status=True, short_names=("ds",)),
    ResourceType("batch", "v1", "Job", "jobs", has_status=True),
    ResourceType("batch", "v1", "CronJob", "cronjobs", has_status=True, short_names=("cj",)),
    ResourceType(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
        has_status=True,
        short_names=("hpa",),
    ),
    ResourceType("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", has_status=True, short_names=("pdb",)),
    ResourceType("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", short_names=("netpol",)),
    ResourceType("networking.k8s.io", "v1", "Ingress", "ingresses", has_status=True, short_names=("ing",)),
    ResourceType("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    ResourceType("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    ResourceType("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False),
    ResourceType("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    ResourceType("coordination.k8s.io", "v1", "Lease", "leases"),
    ResourceType("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False, short_names=("pc",)),
    ResourceType("storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False, short_names=("sc",)),
    ResourceType(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
        has_status=True,
        short_names=("crd",),
    ),
)

KUBERAY = (
    ResourceType("ray.io", "v1", "RayService", "rayservices", has_status=True, is_custom=True),
    ResourceType("ray.io", "v1", "RayCluster", "rayclusters", has_status=True, is_custom=True),
)
