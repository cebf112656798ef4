"""Each alert fires for what it is there for, and for nothing else, by Prometheus' own word (promtool)."""

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.monitoring.alerts import alerts_of, plain_groups, rule_groups

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
    'baton:kv_cache_usage_perc{worker="decode-0"}': "0.9x60",
    'baton:kv_tier_failures_total{worker="decode-0",tier="redis"}': "0x60",
    'baton:process_restarts_total{name="router-0"}': "0x60",
    'baton:autoscaler_needed{pool="decode"}': "2x60",
    'baton:autoscaler_target{pool="decode"}': "2x60",
}
SLO = {"namespace": "serving", "service": "baton-router"}  # labels of recorded series


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
        {"BatonTTFTBurnsFast": SLO, "BatonTTFTBurnsSlow": SLO},
    ),
    Case(
        "a third of the first tokens is late",
        {'baton:time_to_first_token_seconds_bucket{le="1.0"}': "0+40x60"},
        {"BatonTTFTBurnsSlow": SLO},
    ),
    Case(
        "tokens are late",
        {'baton:request_time_per_output_token_seconds_bucket{le="0.05"}': "0+10x60"},
        {"BatonTPOTBurnsFast": SLO, "BatonTPOTBurnsSlow": SLO},
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
    Case(
        "KV of GPUs comes over TCP",
        {'baton:kv_transport_info{worker="decode-0",peer="prefill-1",transport="staged_tcp"}': "1x60"},
        {"BatonSlowTransport": {"worker": "decode-0"}},
    ),
    Case(
        "the KV cache stays full",
        {'baton:kv_cache_usage_perc{worker="decode-0"}': "0.99x60"},
        {"BatonKVFull": {"worker": "decode-0"}},
    ),
    Case(
        "the KV cache is full now and then",
        {'baton:kv_cache_usage_perc{worker="decode-0"}': "1 1 1 0.5 1 1" + " 1 0.5" * 27},
    ),
    Case(
        "a store fails",
        {'baton:kv_tier_failures_total{worker="decode-0",tier="redis"}': "0+1x60"},
        {"BatonStoreSkipped": {"worker": "decode-0", "tier": "redis"}},
    ),
    Case(
        "a process restarts",
        {'baton:process_restarts_total{name="router-0"}': "0x28 1 2 3 4 4x30"},
        {"BatonProcessRestarts": {"name": "router-0"}},
    ),
    Case(
        "the traffic needs more than the budget",
        {'baton:autoscaler_needed{pool="decode"}': "3x60"},
        {"BatonAutoscalerAtLimit": {"pool": "decode"}},
    ),
]


@dataclass(frozen=True, slots=True)
class RuleSet:
    """The chart's rules, or those of the plain file, and how they name what they are about."""

    groups: list[dict[str, Any]]
    labels: Mapping[str, str]  # of all series
    target: str  # label of a router

    def named(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The labels of a case, as this set of rules has them."""
        renamed = {self.target if name == "pod" else name: value for name, value in labels.items()}
        return dict(self.labels) if labels is SLO else renamed

    def bare(self) -> dict[str, Any]:
        """The rules without annotations, which promtool would compare word by word."""
        rules = [
            {**group, "rules": [{key: rule[key] for key in rule if key != "annotations"} for rule in group["rules"]]}
            for group in self.groups
        ]
        return {"groups": rules}


def rule_set(name: str) -> RuleSet:
    if name == "chart":
        return RuleSet(rule_groups(RDMA), SLO, "pod")
    return RuleSet(plain_groups(), {"job": "baton"}, "instance")


def _series(case: Case, rules: RuleSet) -> list[dict[str, str]]:
    found = []
    for pod in PODS:
        own = ",".join(f'{name}="{value}"' for name, value in {**rules.labels, rules.target: pod}.items())
        for name, values in {**HEALTHY, **(case.series if pod in case.pods else {})}.items():
            metric, _, labels = name.rstrip("}").partition("{")
            found.append({"series": f"{metric}{{{','.join(filter(None, (own, labels)))}}}", "values": values})
    return found


def _test(case: Case, rules: RuleSet) -> dict[str, Any]:
    """As promtool has it: of every alert, whether it fires."""
    expected = []
    for alert in alerts_of(rules.groups):
        firing = []
        if alert.name in case.fires:
            firing = [{"exp_labels": {**alert.labels, **rules.named(case.fires[alert.name])}}]
        expected.append({"eval_time": AT, "alertname": alert.name, "exp_alerts": firing})
    return {"name": case.name, "interval": "1m", "input_series": _series(case, rules), "alert_rule_test": expected}


@pytest.mark.parametrize("name", ["chart", "plain"])
def test_every_alert_has_a_case(name: str) -> None:
    found = {alert.name for alert in alerts_of(rule_set(name).groups)}
    only_with_rdma = {"BatonSlowTransport"} if name == "plain" else set()
    assert found | only_with_rdma == {name for case in CASES for name in case.fires}
    assert not found & only_with_rdma, "the file is for machines without RDMA too"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed")
@pytest.mark.parametrize("name", ["chart", pytest.param("plain", marks=pytest.mark.slow)])
def test_each_alert_fires_for_its_cause(name: str, tmp_path: Path) -> None:
    rules = rule_set(name)
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules.bare()), encoding="utf-8")
    content = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [_test(case, rules) for case in CASES],
    }
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(content), encoding="utf-8")
    said = subprocess.run(
        ["promtool", "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stdout + said.stderr
