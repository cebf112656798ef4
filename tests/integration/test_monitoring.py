"""Every series and label that the chart's dashboards and alerts query is in a running cluster's `/metrics`."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.helm.charts import MODEL, merged, only, render
from tests.helm.monitoring.alerts import alerts, recordings
from tests.helm.monitoring.dashboard_file import dashboards, queries
from tests.helm.monitoring.promql import Page, annotation_labels, check, legend_labels, read_page, reference_page
from tests.integration.workers_view import wait_all_ready

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
LONG_PROMPT = "The module calendar prints a month. " * 24


@pytest_asyncio.fixture(loop_scope="session")
async def page(cluster_url: str) -> Page:
    """Return `/metrics` after a request with and one without a handover, and a call of a tool."""
    await wait_all_ready(cluster_url)
    async with httpx.AsyncClient(base_url=cluster_url, trust_env=False, verify=False, timeout=60) as client:
        for prompt in (LONG_PROMPT, "Hello"):
            body = {"model": "baton-bundled", "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
            (await client.post("/v1/completions", json=body)).raise_for_status()
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
        call = {"messages": [{"role": "user", "content": "Hello"}], "tools": [tool], "tool_choice": "required"}
        (await client.post("/v1/chat/completions", json={**call, "max_tokens": 200})).raise_for_status()
        while True:
            text = (await client.get("/metrics")).text
            if "baton:kv_transport_info{" in text:  # the decode worker has reported the handover
                return read_page(text)
            await asyncio.sleep(0.05)


def whole(page: Page) -> Page:
    """Add the series that this cluster has no cause for, such as those of stores, and those of recording rules."""
    optional = ("baton:kv_tier_", "baton:autoscaler_")
    from_reference = {name: labels for name, labels in reference_page().items() if name.startswith(optional)}
    recorded: Page = {name: {} for name in recordings({})}
    return {**from_reference, **recorded, **page}


async def test_panels_query_existing_series(page: Page) -> None:
    series = whole(page)
    checked = [(query, check(query.expression, series)) for board in dashboards().values() for query in queries(board)]
    assert len(checked) > 40
    for query, labels in checked:
        assert legend_labels(query.legend) <= labels, query.panel


async def test_alerts_query_existing_series(page: Page) -> None:
    for alert in alerts({"rdma": {"enabled": True}}):
        labels = check(alert.expression, whole(page))
        for text in alert.annotations.values():
            assert annotation_labels(text) <= labels, alert.name


async def test_keda_queries_existing_series(page: Page) -> None:
    scaler = {"enabled": True, "prometheusAddress": "http://prometheus:9090", "scrapedElsewhere": True}
    keda = {"keda": scaler, "router": {"autoscaling": {"enabled": False}}}
    [trigger] = only(render(merged(MODEL, keda)), "ScaledObject")["spec"]["triggers"]
    assert check(trigger["metadata"]["query"], page) == set()


async def test_the_reference_lists_every_series(page: Page) -> None:
    listed = set(re.findall(r"^\| `(baton:\w+)` \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in page if name.startswith("baton:")}
    assert len(names) > 40
    assert names - listed == set()


async def test_the_checks_detect_missing_series(page: Page) -> None:
    assert page["baton:workers"]["role"] == {"prefill", "decode", "both", "unknown"}
    assert page["baton:worker_info"]["worker"] == {"prefill-0", "decode-0"}
    assert page["baton:requests_by_plan_total"]["plan"] >= {"remote", "local"}
    assert "baton:workers_lost" not in page
