"""Series by adapter: their number is bounded."""

from prometheus_client import CollectorRegistry

from baton.router.metrics.adapter_series import MAX_NAMES, OTHER, AdapterSeries


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
