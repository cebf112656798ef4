"""A real Prometheus scrapes a served router, and evaluates the rules and the queries of the dashboards."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from baton.deployment.local.ports import free_ports
from benchmarks.server import served
from tests.helm.monitoring.alerts import PLAIN
from tests.helm.monitoring.dashboard_file import dashboards, queries
from tests.otlp_collector import grpc_collector

CONFIG = PLAIN.with_name("prometheus.yaml")
VARIABLES = {"$namespace": ".*", "$service": ".*", "$model": ".*", "$worker": ".*"}
TRACE_ID = "a" * 32
LONG_PROMPT = "The module calendar prints a month. " * 24

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus (Debian: prometheus) is not installed"),
]


@asynccontextmanager
async def prometheus(directory: Path, router: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run a Prometheus with the example's configuration, which scrapes the router every second."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [router.removeprefix("http://")]}]
    (directory / "prometheus.yaml").write_text(yaml.safe_dump(config))
    shutil.copy(PLAIN, directory)
    [port] = free_ports("127.0.0.1", 1)
    process = await asyncio.create_subprocess_exec(
        *("prometheus", f"--config.file={directory / 'prometheus.yaml'}", f"--storage.tsdb.path={directory / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", "--enable-feature=exemplar-storage"),
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=30) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def until(client: httpx.AsyncClient, path: str, condition: Callable[[Any], bool], **params: str) -> Any:
    """Return the data of a response once they meet a condition."""
    async with asyncio.timeout(60):
        while True:
            try:
                response = await client.get(path, params=params)
                if response.status_code == 200 and condition(data := response.json()["data"]):
                    return data
            except httpx.TransportError:
                pass  # it does not listen yet
            await asyncio.sleep(0.2)


def is_evaluated(data: Any) -> bool:
    """Whether every rule has been evaluated."""
    rules = [rule for group in data["groups"] for rule in group["rules"]]
    return bool(rules) and all(rule["health"] != "unknown" for rule in rules)


async def test_rules_and_dashboards_work_with_a_real_prometheus(tmp_path: Path) -> None:
    async with (
        served("", "--dtype", "float32", "--metrics-names", "both") as url,
        prometheus(tmp_path, url) as client,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as baton,
    ):
        for prompt in (LONG_PROMPT, "Hello"):
            body = {"model": "baton-bundled", "prompt": prompt, "max_tokens": 8, "ignore_eos": True}
            (await baton.post("/v1/completions", json=body)).raise_for_status()
        await until(client, "query", lambda data: bool(data["result"]), query="baton:handovers_total > 0")
        # A rate needs two scrapes of a series, and this one appears with the first request.
        await until(client, "query", lambda data: bool(data["result"]), query="rate(baton:requests_by_plan_total[1m])")
        rules = await until(client, "rules", is_evaluated)
        found = [rule for group in rules["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in found} == {"ok"}
        firing = {rule["name"] for rule in found if rule.get("state") == "firing"}
        assert firing == set()
        empty = []
        for query in (query for board in dashboards().values() for query in queries(board)):
            expression = query.expression
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            data = await until(client, "query", lambda _: True, query=expression)
            if not data["result"]:
                empty.append((query.panel, query.expression))
        assert len(empty) < 20, empty  # of what did not happen: no autoscaler, no store, no restart, no failure
        await check_vllm_names(client)


@pytest.mark.parametrize("num_routers", ["1", "2"])
async def test_prometheus_stores_the_trace_ids_of_exemplars(tmp_path: Path, num_routers: str) -> None:
    begun_s, headers = time.time(), {"traceparent": f"00-{TRACE_ID}-{'b' * 16}-01"}
    async with grpc_collector() as collector:
        options = ("--router-processes", num_routers, "--otlp-traces-endpoint", collector.endpoint)
        async with (
            served("", "--dtype", "float32", *options) as url,
            prometheus(tmp_path, url) as client,
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as baton,
        ):
            body = {"model": "baton-bundled", "prompt": LONG_PROMPT, "max_tokens": 2}
            (await baton.post("/v1/completions", json=body, headers=headers)).raise_for_status()
            for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "handover_seconds"):
                query = f"baton:{name}_bucket"
                span = {"start": str(begun_s), "end": str(begun_s + 600)}
                [series, *_] = await until(client, "query_exemplars", bool, query=query, **span)
                assert [each["labels"] for each in series["exemplars"]] == [{"trace_id": TRACE_ID}], query
                assert series["seriesLabels"]["__name__"] == query


async def check_vllm_names(client: httpx.AsyncClient) -> None:
    """Check the lists and figures of vLLM's dashboards: its engines, waiting requests, latencies and throughput."""
    engines = await until(client, "query", bool, query="count by (engine) (vllm:num_requests_running)")
    assert {each["metric"]["engine"] for each in engines["result"]} == {"router", "prefill-0", "decode-0"}
    for query in (
        'histogram_quantile(0.99, sum by(le) (vllm:e2e_request_latency_seconds_bucket{model_name="baton-bundled"}))',
        "histogram_quantile(0.99, sum by(le) (vllm:request_prefill_time_seconds_bucket))",
        'sum(vllm:prompt_tokens_total{engine=~"router|decode-0"})',
        "sum by(finished_reason) (vllm:request_success_total)",
        "sum(vllm:num_requests_waiting)",
        "vllm:cache_config_info",
    ):
        assert (await until(client, "query", bool, query=query))["result"], query
