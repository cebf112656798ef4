"""Each alert fires for what it is there for, and for nothing else, by Prometheus' own word (promtool)."""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.monitoring.alerts import Alert, alerts, rule_groups

RDMA = {"rdma": {"enabled": True}}
PODS = ("router-a", "router-b")
AT = "40m"
HEALTHY = {  # what each of two routers tells, a value a minute
    "up": "1x60",
    'baton:workers{role="prefill",state="ready"}': "1x60",
    'baton:workers{role="decode",state="ready"}': "2x60",
    'baton:workers{role="both",state="ready"}': "0x60",
    'baton:workers{role="unknown",state="connecting"}': "1x60",
    'baton:workers_lost_total{role="prefill"}': "0x60",
    'baton:workers_lost_total{role="decode"}': "0x60",
    "baton:registry_connected": "1x60",
    "baton:router_degraded": "0x60",
    'baton:router_refusals_total{reason="queue_full"}': "0x60",
    'baton:router_refusals_total{reason="draining"}': "0+60x60",
    "baton:request_params_n_count": "0+60x60",
    'baton:request_success_total{finished_reason="stop"}': "0+60x60",
    "baton:router_waiting": "0x60",
    'baton:num_preemptions_total{worker="decode-0"}': "0+1x60",
    'baton:time_to_first_token_seconds_bucket{le="1.0"}': "0+59x60",
    "baton:time_to_first_token_seconds_count": "0+60x60",
    'baton:request_time_per_output_token_seconds_bucket{le="0.05"}': "0+59x60",
    "baton:request_time_per_output_token_seconds_count": "0+60x60",
    'baton:handovers_total{worker="decode-0"}': "0+100x60",
    'baton:handover_failures_total{worker="decode-0"}': "0+1x60",
    'baton:checksum_failures_total{worker="decode-0"}': "0x60",
    'baton:kv_transport_info{worker="decode-0",peer="prefill-0",transport="nixl"}': "1x60",
}


@dataclass(frozen=True, slots=True)
class Case:
    """What is not as it should be, and which alerts say so, with what labels beside their severity."""

    name: str
    series: dict[str, str]
    fires: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: tuple[str, ...] = PODS  # of which it is true


CASES = [
    Case("all is well", {}),
    Case("no router answers", {"up": "0x60"}, {"BatonNoRouter": {}}),
    Case("one of two routers answers", {"up": "0x60"}, pods=PODS[:1]),
    Case("no decode worker", {'baton:workers{role="decode",state="ready"}': "0x60"}, {"BatonNoDecodeWorker": {}}),
    Case("one router alone sees none", {'baton:workers{role="decode",state="ready"}': "0x60"}, pods=PODS[:1]),
    Case("no prefill worker", {'baton:workers{role="prefill",state="ready"}': "0x60"}, {"BatonNoPrefillWorker": {}}),
    Case(
        "workers for both alone",
        {
            'baton:workers{role="prefill",state="ready"}': "0x60",
            'baton:workers{role="decode",state="ready"}': "0x60",
            'baton:workers{role="both",state="ready"}': "2x60",
        },
    ),
    Case(
        "workers die",
        {'baton:workers_lost_total{role="decode"}': "0x30 0+1x30"},
        {"BatonWorkersLost": {"role": "decode"}},
    ),
    Case(
        "a router has lost the registry",
        {"baton:registry_connected": "0x60"},
        {"BatonRegistryLost": {"pod": "router-a"}},
        PODS[:1],
    ),
    Case(
        "a router stays degraded",
        {"baton:router_degraded": "1x60"},
        {"BatonRouterDegraded": {"pod": "router-a"}},
        PODS[:1],
    ),
    Case(
        "a tenth is refused",
        {'baton:router_refusals_total{reason="queue_full"}': "0+7x60"},
        {"BatonRequestsRefused": {}},
    ),
    Case("the queue grows", {"baton:router_waiting": "0x20 1+5x40"}, {"BatonQueueGrows": {}}),
    Case("the queue shrinks", {"baton:router_waiting": "300-5x59"}),
    Case("KV runs out", {'baton:num_preemptions_total{worker="decode-0"}': "0+30x60"}, {"BatonPreemptions": {}}),
    Case(
        "first tokens are late",
        {'baton:time_to_first_token_seconds_bucket{le="1.0"}': "0+10x60"},
        {"BatonTTFTBurnsFast": {}, "BatonTTFTBurnsSlow": {}},
    ),
    Case(
        "a third of the first tokens is late",
        {'baton:time_to_first_token_seconds_bucket{le="1.0"}': "0+40x60"},
        {"BatonTTFTBurnsSlow": {}},
    ),
    Case(
        "tokens are late",
        {'baton:request_time_per_output_token_seconds_bucket{le="0.05"}': "0+10x60"},
        {"BatonTPOTBurnsFast": {}, "BatonTPOTBurnsSlow": {}},
    ),
    Case("handovers fail", {'baton:handover_failures_total{worker="decode-0"}': "0+10x60"}, {"BatonHandoversFail": {}}),
    Case(
        "blocks change on their way",
        {'baton:checksum_failures_total{worker="decode-0"}': "0x35 1x25"},
        {"BatonChecksumFailures": {"worker": "decode-0"}},
    ),
    Case(
        "KV comes over TCP",
        {'baton:kv_transport_info{worker="decode-0",peer="prefill-1",transport="tcp"}': "1x60"},
        {"BatonSlowTransport": {"worker": "decode-0"}},
    ),
]


def _series(case: Case) -> list[dict[str, str]]:
    found = []
    for pod in PODS:
        own = f'namespace="serving",service="baton-router",pod="{pod}"'
        for name, values in {**HEALTHY, **(case.series if pod in case.pods else {})}.items():
            metric, _, labels = name.rstrip("}").partition("{")
            found.append({"series": f"{metric}{{{','.join(filter(None, (own, labels)))}}}", "values": values})
    return found


def _test(case: Case, all_alerts: list[Alert]) -> dict[str, Any]:
    """As promtool has it: of every alert, whether it fires."""
    expected = []
    for alert in all_alerts:
        firing = []
        if alert.name in case.fires:
            firing = [{"exp_labels": {**alert.labels, **case.fires[alert.name]}}]
        expected.append({"eval_time": AT, "alertname": alert.name, "exp_alerts": firing})
    return {"name": case.name, "interval": "1m", "input_series": _series(case), "alert_rule_test": expected}


def _rules() -> dict[str, Any]:
    """Without annotations, which promtool would compare word by word."""
    groups = rule_groups(RDMA)
    for group in groups:
        for rule in group["rules"]:
            del rule["annotations"]
    return {"groups": groups}


def test_every_alert_has_a_case() -> None:
    assert {alert.name for alert in alerts(RDMA)} == {name for case in CASES for name in case.fires}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
def test_each_alert_fires_for_its_cause(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(_rules()), encoding="utf-8")
    found = alerts(RDMA)
    content = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [_test(case, found) for case in CASES],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
    said = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
