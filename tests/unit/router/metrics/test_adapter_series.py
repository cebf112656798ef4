"""Series by adapter: their number is bounded."""

from prometheus_client import CollectorRegistry

from baton.router.metrics.adapter_series import MAX_NAMES, OTHER, AdapterRequests, AdapterSeries
from baton.router.metrics.live import LiveCompletion, LiveCompletions
from baton.router.policy.cluster import Plan
from tests.unit.router.rigs.cluster_builder import worker


def test_adapters_beyond_the_bound_share_a_name() -> None:
    registry = CollectorRegistry()
    series = AdapterSeries(registry, "base", "baton:")
    for place in range(MAX_NAMES + 3):
        series.prompt_done(f"a{place}", 5)
        series.completion_ended(f"a{place}", "stop", 2)

    def value(name: str, adapter: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"baton:{name}", {"model_name": "base", "lora_name": adapter, **labels})

    assert value("lora_requests_total", "a1", finished_reason="stop") == 1
    assert value("lora_prompt_tokens_total", OTHER) == 15
    assert value("lora_generation_tokens_total", OTHER) == 6
    assert value("lora_prompt_tokens_total", f"a{MAX_NAMES}") is None


def test_adapters_in_flight_are_labels_as_in_vllm() -> None:
    live = LiveCompletions()
    for name, adapter, is_running in (("a", "sql", True), ("b", "sql", True), ("c", "", True), ("d", "math", False)):
        completion = live.begin(LiveCompletion(name, 0, 1, 1, 0.0, adapter=adapter))
        if is_running:
            live.routed(completion, Plan(worker("decode-0"), None, None, ""))
    [family] = AdapterRequests(live, "base", lambda: 4, "baton:").collect()
    [sample] = family.samples
    assert sample.labels == {
        "model_name": "base",  # otherwise two models without requests would have the same series
        "max_lora": "4",
        "waiting_lora_adapters": "math",
        "running_lora_adapters": "sql",
    }
    [family] = AdapterRequests(live, "base", lambda: 0, "baton:").collect()
    assert not family.samples
