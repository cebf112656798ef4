"""What the chart gives Prometheus and Grafana. That its series exist, tests/integration/test_monitoring.py asks."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser as promql
import pytest
import yaml
from helm_python import HelmError

from baton.router.metrics.metrics import TOKEN_BUCKETS_S, TTFT_BUCKETS_S
from scripts import alert_rules, grafana_dashboards
from tests.helm.cases import PROMETHEUS
from tests.helm.charts import APIS, CHART, MODEL, Manifest, merged, only, pod_templates, render, scaling_settings
from tests.helm.monitoring.alerts import ON, PLAIN, alerts, recordings
from tests.helm.monitoring.dashboard_file import dashboards, panels, queries
from tests.helm.monitoring.promql import check, legend_labels, reference_page, selectors

PARTS = ("serviceMonitor", "podMonitor", "rules", "dashboards")
ALL = {
    "monitoring": {part: {"enabled": True} for part in PARTS},
    "networkPolicy": {"monitoring": [PROMETHEUS]},
}
KINDS = {"ServiceMonitor": "serviceMonitor", "PodMonitor": "podMonitor", "PrometheusRule": "rules"}
RDMA = {"rdma": {"enabled": True}}


def rendered(*values: dict[str, Any], **options: Any) -> list[Manifest]:
    """All objects with all monitoring."""
    return render(merged(MODEL, ALL, *values), **options)


def test_monitoring_is_off_by_default() -> None:
    objects = render(MODEL)
    assert not {each["kind"] for each in objects} & set(KINDS)
    assert not [each for each in objects if each["metadata"]["name"].endswith("-dashboards")]


@pytest.mark.parametrize(("kind", "part"), KINDS.items())
def test_labels_are_added_for_a_prometheus_that_selects_by_them(kind: str, part: str) -> None:
    found = only(rendered({"monitoring": {part: {"labels": {"release": "prometheus"}}}}), kind)
    assert found["metadata"]["labels"]["release"] == "prometheus"
    assert found["metadata"]["namespace"] == "serving"


@pytest.mark.parametrize("kind", KINDS)
def test_a_cluster_without_the_operator_is_refused(kind: str) -> None:
    apis = [each for each in APIS if not each.endswith(kind)]
    with pytest.raises(HelmError, match=f"no monitoring.coreos.com/v1 {kind}"):
        rendered(api_versions=apis)


def test_the_service_monitor_finds_the_routers_service() -> None:
    objects = rendered()
    monitor, service = only(objects, "ServiceMonitor"), only(objects, "Service", "baton-router")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    others = [each for each in objects if each["kind"] == "Service" and each is not service]
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert not [each for each in others if wanted <= each["metadata"].get("labels", {}).items()]
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint == {"port": service["spec"]["ports"][0]["name"], "path": "/metrics", "interval": "15s"}


def test_https_and_keys_reach_the_service_monitor() -> None:
    https = {"tls": {"https": {"enabled": True, "existingSecret": "cert"}}}
    keys = {"auth": {"apiKeys": {"existingSecret": "keys"}}}
    client = {"auth": {"clientKey": {"existingSecret": "client"}}}
    [endpoint] = only(rendered(https, keys, client), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {"serverName": "baton-router.serving.svc"}
    assert endpoint["authorization"] == {"credentials": {"name": "client", "key": "key"}}
    opened = {"auth": {"protectOperations": False}}
    [endpoint] = only(rendered(keys, client, opened), "ServiceMonitor")["spec"]["endpoints"]
    assert "authorization" not in endpoint
    own = {"monitoring": {"serviceMonitor": {"tlsConfig": {"ca": {"secret": {"name": "cert", "key": "ca.crt"}}}}}}
    [endpoint] = only(rendered(https, own), "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["tlsConfig"] == own["monitoring"]["serviceMonitor"]["tlsConfig"]
    with pytest.raises(HelmError, match=r"auth\.clientKey\.existingSecret: missing"):
        rendered(keys, {"tests": {"enabled": False}})


def test_the_pod_monitor_selects_exactly_rays_pods() -> None:
    objects = rendered()
    monitor = only(objects, "PodMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    for name, template in pod_templates(objects).items():
        is_ray = name.startswith("RayService/")
        of_operator = {"ray.io/is-ray-node": "yes"} if is_ray else {}
        assert (wanted.items() <= {**template["metadata"]["labels"], **of_operator}.items()) == is_ray, name
        if is_ray:
            assert endpoint["port"] in [port["name"] for port in template["spec"]["containers"][0]["ports"]]


def test_dashboards_are_complete_and_labelled_for_grafana() -> None:
    extra = {"monitoring": {"dashboards": {"annotations": {"grafana_folder": "LLM"}}}}
    found = only(rendered(extra), "ConfigMap", "baton-dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "LLM"}
    assert {name: json.loads(text) for name, text in found["data"].items()} == {
        f"baton-{name}": board for name, board in dashboards().items()
    }


@pytest.mark.parametrize("name", dashboards())
def test_a_dashboard_is_valid_for_grafana(name: str) -> None:
    board = dashboards()[name]
    ids = [panel["id"] for panel in panels(board)]
    assert len(ids) == len(set(ids))
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables[:6] == ["datasource", "namespace", "service", "model", "pool", "worker"]
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    for query in queries(board):
        for selector in selectors(query.expression):
            matchers = {each.name: each.value for each in selector.matchers.matchers}
            assert matchers["namespace"] == "$namespace", query
            assert matchers["service"] == "$service", query
            assert matchers.get("worker", "$worker") == "$worker", query


def test_the_dashboards_query_series_and_labels_of_the_reference() -> None:
    page = reference_page()
    checked = [(query, check(query.expression, page)) for board in dashboards().values() for query in queries(board)]
    assert len(checked) > 80
    for query, labels in checked:
        assert legend_labels(query.legend) <= labels, query.panel


@pytest.mark.parametrize("script", [grafana_dashboards, alert_rules])
def test_generated_files_are_up_to_date(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [script.__name__, "--check"])
    assert script.main() == 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_promtool_parses_every_query_and_the_plain_rules(tmp_path: Path) -> None:
    found = [query.expression for board in dashboards().values() for query in queries(board)]
    rules = [{"record": f"panel{number}", "expr": expression} for number, expression in enumerate(found)]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    result = subprocess.run(
        ["promtool", "check", "rules", tmp_path / "queries.yml", PLAIN], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{len(found)} rules found" in result.stdout


def test_every_alert_has_a_summary_a_severity_and_a_runbook() -> None:
    found = alerts(RDMA)
    assert len({alert.name for alert in found}) == len(found) > 12
    for alert in found:
        assert alert.labels["severity"] in ("critical", "warning"), alert.name
        assert set(alert.annotations) == {"summary", "description", "runbook_url"}, alert.name
        for selector in selectors(alert.expression):
            matchers = {each.name: each.value for each in selector.matchers.matchers if each.op == promql.MatchOp.Equal}
            assert matchers["namespace"] == "serving", alert.name
            assert matchers["service"] == "baton-router", alert.name


def test_tcp_is_an_alert_only_with_rdma() -> None:
    assert {alert.name for alert in alerts(RDMA)} - {alert.name for alert in alerts({})} == {"BatonSlowTransport"}


@pytest.mark.parametrize("part", ["keda", "monitoring.rules", "monitoring.dashboards"])
def test_routers_keep_the_metrics_that_the_chart_queries(part: str) -> None:
    values: dict[str, Any] = (
        {"enabled": True, "prometheusAddress": "http://prometheus"} if part == "keda" else {"enabled": True}
    )
    for key in reversed(part.split(".")):
        values = {key: values}
    with pytest.raises(HelmError, match=f"metricsNames: vllm, but {part} queries metrics by Baton's names; set both"):
        render(merged(MODEL, values, {"router": {"config": {"metricsNames": "vllm"}}}))


def test_metrics_may_have_other_names_if_the_chart_queries_none() -> None:
    for names, values in (("vllm", {}), ("both", ALL)):
        assert render(merged(MODEL, values, {"router": {"config": {"metricsNames": names}}}))


def test_every_alert_is_documented() -> None:
    page = (Path(CHART).parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sections = {title.lower() for title in re.findall(r"^#+ (Baton\w+)$", page, re.MULTILINE)}
    linked = set()
    for alert in alerts(RDMA):
        url, _, anchor = alert.annotations["runbook_url"].partition("#")
        assert url == "docs/troubleshooting.md"
        assert anchor in sections, alert.name
        linked.add(anchor)
    assert linked == sections
    own = {"monitoring": {"rules": {"runbookURL": "https://wiki.example.com/baton"}}}
    assert alerts(own)[0].annotations["runbook_url"].startswith("https://wiki.example.com/baton#baton")


@pytest.mark.parametrize(("seconds", "spelt"), [(1, "1.0"), (2.5, "2.5"), (0.75, "0.75"), (160, "160.0")])
def test_an_objectives_bound_is_spelt_like_the_bucket_label(seconds: float, spelt: str) -> None:
    slo = {"slo": {"ttftSeconds": seconds}}
    bounds = {
        each.value
        for selector in selectors(recordings(slo)["baton:slo_ttft_misses:ratio_rate1h"])
        for each in selector.matchers.matchers
        if each.name == "le"
    }
    assert bounds == {spelt}


@pytest.mark.parametrize("slo", [{"ttftSeconds": 1.3}, {"tpotSeconds": 0.06}, {"quantile": 0.9}])
def test_an_slo_between_buckets_is_refused_with_alerts(slo: dict[str, float]) -> None:
    assert render(merged(MODEL, {"slo": slo}))
    with pytest.raises(HelmError, match=f"slo.{next(iter(slo))}: "):
        render(merged(MODEL, ON, {"slo": slo}))


@pytest.mark.parametrize(
    ("key", "all_buckets", "longest_s"), [("ttftSeconds", TTFT_BUCKETS_S, 160), ("tpotSeconds", TOKEN_BUCKETS_S, 10)]
)
def test_allowed_slo_bounds_are_the_routers_buckets(key: str, all_buckets: tuple[float, ...], longest_s: float) -> None:
    buckets = tuple(bound for bound in all_buckets if bound <= longest_s)
    with pytest.raises(HelmError, match="is not a bound") as refused:
        render(merged(MODEL, ON, {"slo": {key: 0.0123}}))
    told = str(refused.value).partition("give one of ")[2].partition(", or leave")[0]
    assert tuple(map(float, told.split(", "))) == buckets
    for bound in buckets:
        assert render(merged(MODEL, ON, {"slo": {key: bound}}))


def test_planner_and_alerts_use_the_same_slo() -> None:
    slo = {"ttftSeconds": 2.5, "tpotSeconds": 0.1, "quantile": 0.99}
    objects = rendered({"slo": slo})
    assert scaling_settings(objects)["slo"] == {"ttft_s": 2.5, "tpot_s": 0.1, "quantile": 0.99}
    for name, bound in (("ttft", "2.5"), ("tpot", "0.1")):
        assert f'le="{bound}"' in recordings({"slo": slo})[f"baton:slo_{name}_misses:ratio_rate6h"]
        [expression] = [
            each.expression for each in alerts({"slo": slo}) if each.name == f"Baton{name.upper()}BurnsFast"
        ]
        assert "(1 - 0.99)" in expression
