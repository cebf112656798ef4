"""Generator of examples/prometheus/baton.rules.yaml from the chart's rules, for a Prometheus without the operator.

The series are selected by the label job, and routers are named by the label instance. --check only compares.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart, _native

ROOT = Path(__file__).resolve().parents[1]
RULES = ROOT / "examples" / "prometheus" / "baton.rules.yaml"
RELEASE, NAMESPACE, JOB = "baton", "serving", "baton"
TEMPLATE = "baton/templates/monitoring/rules.yaml"
HEADER = """\
# Recording and alert rules for a Prometheus that scrapes Baton's routers as the job `baton` (prometheus.yaml).
# The objectives are 1 s of TTFT and 50 ms per output token for 95% of the requests. docs/observability.md says how to
# change them. Generated from the chart's rules by `python -m scripts.alert_rules`.
"""
REPLACED = (
    (f'namespace="{NAMESPACE}",service="{RELEASE}-router"', f'job="{JOB}"'),
    (f" of {RELEASE} in {NAMESPACE}", ""),
    ("by (pod, process)", "by (instance, process)"),
    ("by (pod)", "by (instance)"),
    ("$labels.pod", "$labels.instance"),
)


def plain_rules() -> str:
    """Return the rules as a file of Prometheus."""
    values = {
        "model": "bundled",
        "image": {"repository": "r"},
        "monitoring": {"rules": {"enabled": True}},
        "slo": {"ttftSeconds": 1, "tpotSeconds": 0.05, "quantile": 0.95},
        "ray": {"checkOperator": False},
        "redis": {"auth": {"existingSecret": "s"}},
    }
    options = {"name": RELEASE, "namespace": NAMESPACE, "kube_version": "v1.34.0", "api_versions": []}
    chart = Chart.load(ROOT / "helm" / "baton")
    rendered = _native.call_string("helm_render", chart._raw(), json.dumps(values), json.dumps(options))
    groups = yaml.safe_load(json.loads(str(rendered))[TEMPLATE])["spec"]["groups"]
    for group in groups:
        group["rules"] = [_plain(rule) for rule in group["rules"]]
    return HEADER + yaml.safe_dump({"groups": groups}, sort_keys=False, width=4096)


def _plain(rule: dict[str, Any]) -> dict[str, Any]:
    """Return a rule without anything of the chart's release."""
    text = json.dumps(rule)
    for old, new in REPLACED:
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    plain: dict[str, Any] = json.loads(text)
    if "record" in plain:
        plain["labels"] = {"job": JOB}
    return plain


def main() -> int:
    """Run the script, and return the exit status."""
    text = plain_rules()
    if RULES.is_file() and RULES.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{RULES} is old: run python -m scripts.alert_rules")
        return 1
    RULES.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
