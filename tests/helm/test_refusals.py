"""What could not work is refused before anything is installed, in words that help."""

from typing import Any

import pytest
from helm_python import HelmError

from tests.helm import charts
from tests.helm.cases import CASES

HTTPS = {"enabled": True, "existingSecret": "cert"}

FAILURES: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model: missing"),
    ({"model": "bundled", "revision": "v1"}, "revision: it is for a hub id, not for the model bundled"),
    ({"tokenizer": "/models/t", "tokenizerRevision": "v1"}, "tokenizerRevision: it is for a hub id in tokenizer"),
    (
        {"model": "/m", "tokenizer": "a/b", "modelCache": {"fetch": False}},
        "tokenizer: a/b cannot be downloaded with modelCache.fetch=false; give a path that already has it",
    ),
    ({"fullnameOverride": "b" * 48}, "has 48 characters"),
    ({"fullnameOverride": "1b"}, "must begin with a letter"),
    ({"prefill": {"minReplicas": 5}}, r"prefill\.minReplicas: 5 is more than maxReplicas"),
    ({"decode": {"replicas": 2}}, r"decode\.replicas: 2, but with autoscaling the size follows the load"),
    (
        {"decode": {"startTimeoutSeconds": 7200}, "autoscaling": {"startTimeoutSeconds": 3600}},
        r"autoscaling\.startTimeoutSeconds: 3600, but a worker of decode may take 7200",
    ),
    (
        {"kvStores": {"hostMemoryBytes": "16GiB"}},
        r"kvStores\.hostMemoryBytes: 16GiB are in the pods' shared memory, of which prefill\.shmGi gives 8 GiB",
    ),
    ({"lora": {"dir": "/adapters"}}, r"lora\.enabled: it is false, but lora\.modules or lora\.dir is set"),
    ({"kvStores": {"keyFile": "/etc/kv/key"}}, r"kvStores\.keyFile: there is nothing to encrypt"),
    ({"decode": {"minReplicas": 0, "maxReplicas": 4}}, "at least one"),
    ({"autoscaling": {"enabled": False}, "decode": {"replicas": 0}}, "at least one"),
    ({"decode": {"maxReplicas": 40, "replicasPerPod": 2}}, "need 20 pods, but the worker group has 16"),
    (
        {"prefill": {"tensorParallelSize": 2, "expertParallelSize": 4, "minReplicas": 4}},
        r"prefill\.tensorParallelSize: 2, but expertParallelSize: 4; .* set the same number, .* or 1",
    ),
    (
        {"decode": {"tensorParallelSize": 4, "expertParallelSize": 2, "minReplicas": 2}},
        r"decode\.tensorParallelSize: 4, but expertParallelSize: 2",
    ),
    ({"decode": {"tensorParallelSize": 4}, "autoscaling": {"budgetGPUs": 4}}, "the smallest pools need 5"),
    (
        {"decode": {"tensorParallelSize": 4, "nodesPerWorker": 2}, "autoscaling": {"budgetGPUs": 4}},
        "the smallest pools need 5",
    ),
    (
        {"decode": {"tensorParallelSize": 3, "nodesPerWorker": 2}},
        r"decode\.nodesPerWorker: 2 nodes cannot have equal shares of 3 ranks; set decode\.tensorParallelSize to a mul",
    ),
    (
        {"device": "cpu", "decode": {"tensorParallelSize": 4, "nodesPerWorker": 2}},
        r"decode\.engine\.kvCacheMemoryBytes: missing; nodes without GPUs have no common default",
    ),
    (
        {"prefill": {"tensorParallelSize": 4, "nodesPerWorker": 2, "replicasPerPod": 2}},
        r"prefill\.replicasPerPod: 2, but a worker over several nodes has a pod on each of them to itself; set 1",
    ),
    (
        {"decode": {"tensorParallelSize": 4, "nodesPerWorker": 4, "maxReplicas": 5}},
        r"decode\.maxReplicas: 5 replicas, 4 pods each, need 20 pods, but the worker group has 16",
    ),
    (
        {"decode": {"expertParallelSize": 3, "minReplicas": 2}},
        r"decode\.minReplicas: 2, but the pool's group begins with 3 workers",
    ),
    (
        {"autoscaling": {"enabled": False}, "prefill": {"expertParallelSize": 4, "replicas": 3}},
        r"prefill\.replicas: 3, but the pool's group begins with 4 workers",
    ),
    ({"eplb": {"enabled": True}}, "eplb: each worker has all experts"),
    ({"eplb": {"numRedundantExperts": 8}}, "eplb: each worker has all experts"),
    ({"minExpertRanks": 2}, "minExpertRanks: each worker has all experts"),
    ({"router": {"config": {"targetTpotMs": 50}}}, "targetTtftMs needs targetTpotMs"),
    ({"decode": {"shmGi": 100}}, "count as the pod's memory"),
    ({"decode": {"extraResources": {"nvidia.com/gpu": 2}}}, "nvidia.com/gpu is set twice"),
    ({"decode": {"gpuClaimTemplate": "gpu"}, "device": "cpu"}, "decode.gpuClaimTemplate: device is cpu"),
    (
        {"decode": {"gpuClaimTemplate": "gpu"}, "autoscaling": {"clusterBudget": {"enabled": True}}},
        "decode.gpuClaimTemplate: .* set autoscaling.budgetGPUs instead",
    ),
    ({"rdma": {"enabled": True}, "prefill": {"extraResources": {"rdma/hca": 2}}}, "rdma/hca is set twice"),
    *(
        ({"head": {"extraEnv": [{"name": name, "value": "x"}]}}, f"head.extraEnv: {name} is the operator's own")
        for name in ("RAY_REDIS_ADDRESS", "REDIS_USERNAME", "RAY_enable_autoscaler_v2")
    ),
    (
        {
            "head": {
                "faultTolerance": {"enabled": True, "redisAddress": "r:1"},
                "extraEnv": [{"name": "REDIS_PASSWORD", "value": "x"}],
            }
        },
        "REDIS_PASSWORD is the operator's own",
    ),
    ({"head": {"extraEnv": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}}, "head.extraEnv: NVIDIA_VIS.* twice"),
    ({"router": {"extraEnv": [{"name": "BATON_REGISTRY", "value": "x"}]}}, "router.extraEnv: BATON_REGISTRY is set tw"),
    ({"decode": {"extraEnv": [{"name": "HOME", "value": "/"}]}}, "decode.extraEnv: HOME is set twice"),
    ({"prefill": {"extraEnv": [{"name": "A", "value": "1"}] * 2}}, "prefill.extraEnv: A is set twice"),
    (
        {"rdma": {"enabled": True}, "decode": {"extraEnv": [{"name": "UCX_TLS", "value": "all"}]}},
        "decode.extraEnv: UCX_TLS is set twice",
    ),
    ({"modelCache": {"extraEnv": [{"name": "TMPDIR", "value": "/"}]}}, "modelCache.extraEnv: TMPDIR is set twice"),
    ({"monitoring": {"podMonitor": {"enabled": True}}}, "no access to the metrics of Ray's pods"),
    (
        {"redis": {"enabled": False, "external": {"url": "redis://x"}, "auth": {"existingSecret": "x"}}},
        "the chart's own Redis, which",
    ),
    ({"autoscaling": {"budgetGPUs": 1}}, "the smallest pools need 2"),
    (
        {"autoscaling": {"flipSeconds": 1}, "decode": {"tensorParallelSize": 2}},
        r"autoscaling\.flipSeconds: workers of 1 GPUs for prefill and 2 for decode cannot replace each other",
    ),
    (
        {
            "autoscaling": {"flipSeconds": 1},
            **{pool: {"expertParallelSize": 2, "minReplicas": 2} for pool in ("prefill", "decode")},
        },
        r"autoscaling\.flipSeconds: ranks of an expert group keep their role; .* set expertParallelSize to 1",
    ),
    ({"device": "cpu", "autoscaling": {"clusterBudget": {"enabled": True}}}, "it counts GPUs"),
    ({"redis": {"enabled": False}}, "need a registry"),
    ({"redis": {"external": {"url": "redis://x"}}}, "not both"),
    ({"redis": {"enabled": False, "external": {"url": "redis://x", "existingSecret": "y"}}}, "not both"),
    ({"head": {"faultTolerance": {"enabled": True}}}, "a Redis without persistence"),
    (
        {"head": {"faultTolerance": {"enabled": True}}, "redis": {"enabled": False, "external": {"url": "redis://x"}}},
        "redisAddress: missing",
    ),
    ({"head": {"faultTolerance": {"enabled": True, "redisAddress": "r"}}}, "r has no port"),
    ({"modelCache": {"type": "hostPath"}}, "hostPath: missing"),
    ({"modelCache": {"job": {"enabled": True}}}, "it fills a volume that pods share"),
    ({"modelCache": {"fetch": False}}, "must be a path"),
    ({"modelCache": {"readOnly": True}}, "modelCache.readOnly: nothing can be downloaded"),
    ({"model": "/models/llama"}, "model: /models/llama is in modelCache.mountPath, and an emptyDir is empty"),
    (
        {
            "model": "/models/llama",
            "decode": {
                "extraVolumes": [{"name": "x", "emptyDir": {}}],
                "extraVolumeMounts": [{"name": "x", "mountPath": "/scratch"}],
            },
        },
        "model: /models/llama is in modelCache.mountPath",
    ),
    ({"modelCache": {"pvc": {"existingClaim": "mine"}}}, "existingClaim: mine would not be used, .* emptyDir"),
    ({"modelCache": {"hostPath": "/m"}}, "hostPath: /m would not be used"),
    (
        {"modelCache": {"type": "pvc", "pvc": {"accessModes": ["ReadWriteOnce"]}}},
        "accessModes: .* ReadWriteOnce allows one node",
    ),
    ({"image": {"repository": ""}}, "image.repository: missing; there is no published image"),
    ({"image": {"repository": "r.example.com:5000/baton:1"}}, "image.repository: .*:1 has a tag"),
    ({"redis": {"image": {"repository": "valkey@sha256:1"}}}, "redis.image.repository: .* has a tag or a digest"),
    ({"router": {"image": {"repository": "r.example.com/baton:cpu"}}}, "router.image.repository: .* has a tag"),
    ({"rdma": {"enabled": True}, "transport": "tcp"}, "transport: tcp would leave the RDMA devices"),
    ({"slo": {"ttftSeconds": 200}}, "slo.ttftSeconds: 200 seconds; .* milliseconds"),
    ({"slo": {"tpotSeconds": 50}}, "slo.tpotSeconds: 50 seconds; .* milliseconds"),
    (
        {"device": "cpu", "engine": {"kvCacheMemoryBytes": "48GiB"}},
        "engine.kvCacheMemoryBytes: 48GiB of KV do not fit into a replica's memory, 48 GiB .prefill.memoryGi",
    ),
    (
        {"device": "cpu", "decode": {"engine": {"kvCacheMemoryBytes": 60000000000}}},
        "decode.engine.kvCacheMemoryBytes: .* .decode.memoryGi",
    ),
    ({"ray": {"checkOperator": False}}, "redis.auth.existingSecret: missing; .* Secret baton-redis"),
    ({"keda": {"enabled": True}}, "both size the routers"),
    ({"keda": {"enabled": True}, "router": {"autoscaling": {"enabled": False}}}, r"keda\.prometheusAddress: missing"),
    (
        {
            "keda": {"enabled": True, "prometheusAddress": "http://prometheus:9090"},
            "router": {"autoscaling": {"enabled": False}},
        },
        "does not make Prometheus scrape",
    ),
    (
        {
            "keda": {"enabled": True, "prometheusAddress": "http://p", "scrapedElsewhere": True, "minReplicas": 9},
            "router": {"autoscaling": {"enabled": False}},
        },
        "keda: minReplicas is more than maxReplicas",
    ),
    ({"redis": {"enabled": False, "external": {"url": "redis://u:1@cache:6380/0"}}}, "6379, but the URL has 6380"),
    ({"ingress": {"enabled": True}, "tls": {"https": HTTPS}}, "would send them plaintext"),
    (
        {"ingress": {"enabled": True, "annotations": {"a/b": "HTTPS"}}, "tls": {"https": HTTPS}},
        r"nginx\.ingress\.kubernetes\.io/backend-protocol: HTTPS",
    ),
    ({"router": {"autoscaling": {"minReplicas": 9}}}, "minReplicas is more than maxReplicas"),
    ({"auth": {"apiKeys": {"existingSecret": "keys"}}}, "`helm test` needs a key"),
    ({"httpRoute": {"enabled": True}}, "name the Gateway"),
    ({"tls": {"internal": {"enabled": True}}}, "it needs a certificate"),
    ({"tls": {"https": {"certManager": {"enabled": True}}}}, "would not be used"),
    ({"tls": {"https": {"enabled": True, "certManager": {"enabled": True}}}}, r"issuerRef\.name: missing"),
    (
        {"tls": {"https": {"enabled": True, "existingSecret": "x", "certManager": {"enabled": True}}}},
        "not both",
    ),
]


ACCEPTED: list[dict[str, Any]] = [
    {"model": "/opt/model"},  # in the image
    {"model": "/models/llama", "modelCache": {"type": "pvc", "pvc": {"existingClaim": "mine"}, "readOnly": True}},
    {"modelCache": {"type": "pvc", "pvc": {"accessModes": ["ReadWriteOnce"], "singleNode": True}}},
    {"image": {"repository": "r.example.com:5000/baton"}},
    {"router": {"podAnnotations": None, "podLabels": None}, "head": {"podLabels": None}, "commonLabels": None},
    {"decode": {"podLabels": None}, "router": {"resources": None, "image": None}, "head": {"image": None}},
    {"device": "cpu", "engine": None, "prefill": {"engine": None}},
    {"router": {"resources": {"limits": {"ephemeral-storage": "1Gi"}}}},
    {"decode": {"extraResources": {"a.example/b": "1e3"}}, "router": {"resources": {"requests": {"cpu": ".5"}}}},
    {
        "model": "/models/x",
        **{
            name: {
                "extraVolumes": [{"name": "x", "hostPath": {"path": "/x"}}],
                "extraVolumeMounts": [{"name": "x", "mountPath": "/models/x"}],
            }
            for name in ("router", "prefill", "decode")
        },
    },
    {"slo": {"ttftSeconds": 160, "tpotSeconds": 10}},
    {"device": "cpu", "engine": {"kvCacheMemoryBytes": "47.5GiB"}},
    {"engine": {"kvCacheMemoryBytes": "60GiB"}},  # of a GPU's memory
]


@pytest.mark.parametrize("change", ACCEPTED)
def test_unusual_values_that_work_are_accepted(change: dict[str, Any]) -> None:
    assert charts.only(charts.render(charts.merged(charts.MODEL, change)), "RayService")


@pytest.mark.parametrize(("change", "words"), FAILURES)
def test_impossible_values_are_refused_before_the_install(change: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmError, match=words):
        charts.render(charts.merged(charts.MODEL, change))


@pytest.mark.parametrize(
    ("missing", "case"),
    [
        ("ray.io/v1/RayService", "everything"),
        ("keda.sh/v1alpha1/ScaledObject", "everything"),
        ("gateway.networking.k8s.io/v1/HTTPRoute", "tls"),
        ("gateway.networking.k8s.io/v1/BackendTLSPolicy", "tls"),
    ],
)
def test_a_missing_operator_is_named(missing: str, case: str) -> None:
    apis = [each for each in charts.APIS if each != missing]
    with pytest.raises(HelmError, match=missing.rpartition("/")[2]):
        charts.render(CASES[case], api_versions=apis)
    own = {"redis": {"auth": {"existingSecret": "registry"}}}
    unchecked = charts.merged(CASES[case], own, {"ray": {"checkOperator": False}})
    assert charts.only(charts.render(unchecked, api_versions=[]), "RayService")
