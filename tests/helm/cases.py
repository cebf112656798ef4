"""Values that between them have every template rendered."""

from typing import Any

from tests.helm import charts

PROMETHEUS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
MONITORING = {
    "monitoring": {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "rules", "dashboards")},
    "networkPolicy": {"monitoring": [PROMETHEUS]},
}
CERT_MANAGER = {"enabled": True, "certManager": {"enabled": True, "issuerRef": {"name": "ca"}}}
KEYS = {"apiKeys": {"existingSecret": "keys"}, "clientKey": {"existingSecret": "key"}}
TLS = {
    "auth": KEYS,
    "tls": {"internal": CERT_MANAGER, "https": {**CERT_MANAGER, "dnsNames": ["llm.example.com"]}},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "annotations": {"nginx.ingress.kubernetes.io/backend-protocol": "HTTPS"},
    },
    "httpRoute": {
        "enabled": True,
        "parentRefs": [{"name": "gateway"}],
        "hostnames": ["llm.example.com"],
        "backendTLS": {"caConfigMap": "ca"},
    },
}
JOB = {"modelCache": {"type": "pvc", "job": {"enabled": True}}}
EVERYTHING = {
    "redis": {"persistence": {"enabled": True}},
    "head": {"faultTolerance": {"enabled": True}},
    "tracing": {"endpoint": "grpc://collector.tracing:4317", "sampleRatio": 0.1},
    "router": {"grpc": True, "autoscaling": {"enabled": False}, "config": {"maxQueueWaitS": 2.5, "policy": "cost"}},
    "keda": {"enabled": True, "prometheusAddress": "http://prometheus.monitoring:9090", "scrapedElsewhere": True},
    "autoscaling": {"clusterBudget": {"enabled": True, "createClusterRole": True}},
    "modelCache": {"type": "pvc", "job": {"enabled": True}, "hubToken": {"existingSecret": "hub"}},
    "networkPolicy": {
        "clients": [{"namespaceSelector": {}}],
        "monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    },
    "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"]},
    "extraObjects": [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-extra", "namespace": "x"}}
    ],
}
# Ids are the cluster's to give.
OPENSHIFT = {
    "podSecurity": dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup")),
    "redis": {"podSecurity": dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"))},
    "modelCache": {"hubToken": {"existingSecret": "hub"}},
}
EXTERNAL = {
    **charts.IMAGE,
    "model": "/models/llama",
    "redis": {"enabled": False, "external": {"url": "rediss://cache.example.com:6380/0", "port": 6380}},
    "autoscaling": {"enabled": False},
    "serviceAccount": {"create": False},
    "networkPolicy": {"enabled": False},
    "tests": {"enabled": False},
    "modelCache": {"type": "hostPath", "hostPath": "/data/models"},
}
# Both pools are groups, over pods of several workers and of one.
EXPERTS = {
    "prefill": {"expertParallelSize": 2, "minReplicas": 2},
    "decode": {"expertParallelSize": 3, "minReplicas": 4, "maxReplicas": 9, "replicasPerPod": 2},
    "minExpertRanks": 2,
    "eplb": {"enabled": True, "numRedundantExperts": 2, "stepInterval": 500, "numNodes": 2},
}
# Workers of several GPUs, the pools' of different sizes, two of them in a pod of the second.
RANKS = {
    "prefill": {"tensorParallelSize": 2},
    "decode": {"tensorParallelSize": 3, "replicasPerPod": 2, "maxReplicas": 6},
}
CASES: dict[str, dict[str, Any]] = {
    "default": charts.MODEL,
    **{name: charts.example(name) for name in charts.EXAMPLES},
    "tls": charts.merged(charts.MODEL, TLS),
    "monitoring": charts.merged(charts.MODEL, MONITORING),
    "tls-monitoring": charts.merged(charts.MODEL, TLS, MONITORING),
    "everything": charts.merged(charts.MODEL, EVERYTHING),
    "openshift": charts.merged(charts.MODEL, OPENSHIFT),
    "external": EXTERNAL,
    "experts": charts.merged(charts.MODEL, EXPERTS),
    "ranks": charts.merged(charts.MODEL, RANKS),
}
