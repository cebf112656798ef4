"""The values' schema: complete, explained, strict; and the README that is made of it."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from helm_python import HelmError

from baton.settings import registry_url
from scripts.chart_readme import CHART, readme, resolved
from tests.helm import charts
from tests.helm.cases import CASES

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))


def entries(schema: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of the schema, with what is said of it."""
    for name, found in schema.get("properties", {}).items():
        entry = resolved(found, SCHEMA)
        yield f"{where}{name}", entry
        yield from entries(entry, f"{where}{name}.")
        yield from entries(resolved(entry.get("items", {}), SCHEMA), f"{where}{name}[].")


def test_every_key_is_explained_and_no_other_is_allowed() -> None:
    found = dict(entries(SCHEMA))
    assert len(found) > 250
    assert [name for name, entry in found.items() if not entry.get("description", "").endswith((".", "`"))] == []
    sections = [(name, entry) for name, entry in found.items() if "properties" in entry]
    assert [name for name, entry in sections if entry["additionalProperties"] is not False] == []
    assert SCHEMA["additionalProperties"] is False
    assert [name for name, entry in found.items() if not {"type", "enum"} & set(entry)] == []


def test_the_schema_has_exactly_the_keys_of_the_values() -> None:
    """But for the router's own options, of which none is given, and what a parent chart says."""
    values = set(keys(charts.chart().values))
    told = {name for name, _ in entries(SCHEMA) if "[]" not in name}
    told = {name for name in told if not name.startswith("router.config.") and name != "global"}
    optional = {name for name in told if name.startswith(("prefill.engine.", "decode.engine."))}
    assert values - told - set(free_keys(values, told)) == set()
    assert told - optional - values == set()


def keys(values: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """The paths of all values and sections."""
    for name, value in values.items():
        yield f"{where}{name}"
        if isinstance(value, Mapping):
            yield from keys(value, f"{where}{name}.")


def free_keys(values: set[str], told: set[str]) -> Iterator[str]:
    """Values below a key whose content is Kubernetes' own, such as labels."""
    free = {name for name, entry in entries(SCHEMA) if "properties" not in entry and name in told}
    yield from (name for name in values if any(name.startswith(f"{each}.") for each in free))


@pytest.mark.parametrize("case", CASES)
def test_good_values_pass(case: str) -> None:
    values = charts.chart().merge_values(CASES[case])
    charts.chart().validate_schema(values)
    with pytest.raises(HelmError, match="modle"):  # it is these values that were looked at
        charts.chart().validate_schema({**values, "modle": "x"})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"modle": "x"}, "modle"),
    ({"decode": {"replica": 2}}, "replica"),
    ({"decode": {"engine": {"maxNumSeq": 2}}}, "maxNumSeq"),
    ({"router": {"config": {"max_queue": 2}}}, "max_queue"),
    ({"decode": {"maxReplicas": 0}}, "maxReplicas"),
    ({"decode": {"expertParallelSize": 0}}, "expertParallelSize"),
    ({"eplb": {"stepInterval": 0}}, "stepInterval"),
    ({"eplb": {"numNodes": 0}}, "numNodes"),
    ({"minExpertRanks": 0}, "minExpertRanks"),
    ({"eplb": {"enable": True}}, "enable"),
    ({"router": {"config": {"trafficWindowS": 0}}}, "trafficWindowS"),
    ({"decode": {"maxReplicas": "4"}}, "maxReplicas"),
    ({"prefill": {"replicasPerPod": 101}}, "replicasPerPod"),
    ({"device": "gpu"}, "device"),
    ({"transport": "rdma"}, "transport"),
    ({"image": {"digest": "sha256:abc"}}, "digest"),
    ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
    ({"slo": {"quantile": 1}}, "quantile"),
    ({"autoscaling": {"slo": {"quantile": 0.9}}}, "slo"),
    ({"monitoring": {"rules": {"slo": {"objective": 0.95}}}}, "slo"),
    *(
        ({"model": model}, "/model")
        for model in ("qwen", "a/b/c", "/models/../etc", "../x", "a/..", "/models/a b", "https://hub/a/b")
    ),
    *(
        ({"modelCache": {"type": "hostPath", "hostPath": path}}, "hostPath")
        for path in ("models", "/", "/a/../b", "//a")
    ),
    *(({"modelCache": {"mountPath": path}}, "mountPath") for path in ("/a/..", "/a/./b", "/a/", "/a b")),
    *(({"modelCache": {"hubEndpoint": url}}, "hubEndpoint") for url in ("mirror", "ftp://mirror", "https://", "//m")),
    *(
        ({"redis": {"enabled": False, "external": {"url": url}}}, "url")
        for url in ("cache:6379", "http://cache", "redis:cache", "redis+tls://cache")
    ),
    *(
        ({"auth": {"apiKeys": {"existingSecret": name}}}, "existingSecret")
        for name in ("Keys", "my_keys", "-keys", "keys-", "a..b", "a" * 254)
    ),
    ({"auth": {"apiKeys": {"existingSecret": "keys", "key": "a/b"}}}, "key"),
    ({"image": {"pullSecrets": [""]}}, "pullSecrets"),
    ({"modelCache": {"pvc": {"existingClaim": "Mine"}}}, "existingClaim"),
    *(({"keda": {"prometheusAddress": url}}, "prometheusAddress") for url in ("prometheus:9090", "http://")),
    *(({"httpRoute": {"path": path}}, "path") for path in ("v1", "/v1//x", "/v1/../x", "/v1/..", "/v1#x", "/a b")),
    ({"httpRoute": {"hostnames": ["https://llm.example.com"]}}, "hostnames"),
    ({"ingress": {"hosts": [{"host": "LLM.example.com", "path": "/"}]}}, "host"),
    ({"tls": {"https": {"dnsNames": ["a b"]}}}, "dnsNames"),
    ({"tls": {"internal": {"serverName": "*"}}}, "serverName"),
    ({"networkPolicy": {"dnsPorts": []}}, "dnsPorts"),
    ({"networkPolicy": {"hubPorts": [70000]}}, "hubPorts"),
    ({"podSecurity": {"fsGroup": "1000"}}, "fsGroup"),
    ({"ray": {"upgradeStrategy": "Recreate"}}, "upgradeStrategy"),
    ({"ray": {"version": "2.60"}}, "version"),
    ({"podSecurity": {"runAsUser": 0}}, "runAsUser"),
    ({"modelCache": {"type": "nfs"}}, "type"),
    ({"modelCache": {"mountPath": "models"}}, "mountPath"),
    ({"modelCache": {"sizeLimit": "20 GB"}}, "sizeLimit"),
    ({"hugepages": {"size": "4Mi"}}, "size"),
    ({"modelCache": {"pvc": {"size": "100m"}}}, "size"),
    ({"router": {"resources": {"requests": {"cpu": "two"}}}}, "cpu"),
    ({"router": {"resources": {"limits": {"memory": "4GB"}}}}, "memory"),
    ({"head": {"autoscalerResources": {"limits": {"memory": -1}}}}, "memory"),
    ({"decode": {"extraResources": {"vendor.example/nic": "1 nic"}}}, "nic"),
    ({"engine": {"kvCacheMemoryBytes": "plenty"}}, "kvCacheMemoryBytes"),
    ({"modelCache": {"pvc": {"accessModes": ["ReadWriteOncePod"]}}}, "accessModes"),
    ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "invalid propertyName"),
    ({"rdma": {"ucx": {"TLS": 1}}}, "TLS"),
    ({"hostIPC": True}, "hostIPC"),
    ({"router": {"service": {"port": 70000}}}, "port"),
    *(
        ({name: {"podLabels": {"app.kubernetes.io/component": "x"}}}, "invalid propertyName")
        for name in ("router", "head", "decode")
    ),
    ({"modelCache": {"extraEnv": {"HTTPS_PROXY": "x"}}}, "extraEnv"),
    ({"monitoring": {"serviceMonitor": {"interval": "soon"}}}, "interval"),
]


GOOD: list[dict[str, Any]] = [
    {"model": "Qwen/Qwen3-0.6B"},
    {"model": "/opt/models/a..b/v1.0_x"},
    {"router": {"resources": {"requests": {"cpu": 0.5, "memory": "1.5Gi", "ephemeral-storage": 10}}}},
    {"model": "bundled"},
    {"modelCache": {"type": "hostPath", "hostPath": "/var/lib/a..b"}},
    {"modelCache": {"hubEndpoint": "https://mirror.example.com:8443/hub"}},
    *(
        {"redis": {"enabled": False, "external": {"url": f"{scheme}://:p%40s@cache/0"}}}
        for scheme in registry_url.SCHEMES
    ),
    {"redis": {"enabled": False, "external": {"url": "redis://u:6000@cache"}}},
    {"redis": {"enabled": False, "external": {"url": "redis+sentinel://a:26379,b:26380/main"}}},
    {"redis": {"auth": {"existingSecret": "a.b-c.9"}}},
    {"httpRoute": {"path": "/"}},
    {"podSecurity": {"runAsUser": None}},
]


@pytest.mark.parametrize("values", GOOD)
def test_unusual_but_valid_values_pass(values: dict[str, Any]) -> None:
    assert charts.only(charts.render(charts.merged(charts.MODEL, values)), "RayService")


@pytest.mark.parametrize(("values", "word"), BAD)
def test_bad_values_are_named(values: dict[str, Any], word: str) -> None:
    with pytest.raises(HelmError, match=word):
        charts.render(charts.merged(charts.MODEL, values))


def test_the_readme_matches_schema_and_values() -> None:
    assert (CHART / "README.md").read_text(encoding="utf-8") == readme(), "run python scripts/chart_readme.py"
    check = subprocess.run([sys.executable, "scripts/chart_readme.py", "--check"], cwd=CHART.parents[1], check=False)
    assert check.returncode == 0
