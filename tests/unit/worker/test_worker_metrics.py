"""The metrics page of a worker."""

from collections.abc import Iterable

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from baton.worker.metrics import serve_metrics


class Handovers(Collector):
    """A collector of one series, named like a worker's."""

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily("baton:handovers", "Handovers received.", value=3)


@pytest.mark.parametrize("more", ["", ";escaping=underscores", ";escaping=allow-utf-8"])
def test_openmetrics_has_the_same_names(more: str) -> None:
    server = serve_metrics(Handovers(), "127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        text = httpx.get(url, trust_env=False, verify=False).text
        assert "baton:handovers_total 3.0" in text
        assert "# EOF" not in text
        accept = f"application/openmetrics-text;version=1.0.0{more},text/plain;version=0.0.4;q=0.5"
        page = httpx.get(url, headers={"accept": accept}, trust_env=False, verify=False)
        assert page.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        [family] = text_string_to_metric_families(page.text)
        assert [(sample.name, sample.value) for sample in family.samples] == [("baton:handovers_total", 3)]
    finally:
        server.shutdown()
        server.server_close()
