"""Tables of vLLM's metrics: which of Baton's series have their values, and which have no counterpart."""

from collections.abc import Mapping, Sequence

from baton.rpc.vllm_names import OF_ROUTER, OF_WORKER, VllmSeries
from scripts.reference.tables import code, table

# Differences from vLLM in series with the same name.
NOTES: Mapping[str, str] = {
    "num_requests_waiting": "the engine `router` has the router's queue",
    "num_requests_running": "the engine `router` has always 0; without it, dashboards would not list that engine",
    "kv_cache_usage_perc": "KV groups count as one pool",
    "cache_config_info": "labels `block_size` and `num_gpu_blocks` only",
    "prefix_cache_hits": "on routers, tokens that no worker had to compute: fetched and pulled ones too",
    "request_queue_time_seconds": "arrival until the command to the first worker",
    "request_prefill_time_seconds": "from there to the first token: queues of workers and handovers included",
    "request_inference_time_seconds": "from there to the last token",
    "request_max_num_generation_tokens": "of each completion, not the longest of a prompt's",
    "request_success": "`stop`, `length`, `abort` or `error`",
    "lora_requests_info": "adapters of the router's completions in flight, by model; 100 names at most in a label",
    "prompt_tokens": "cached ones included, as in vLLM",
}
# vLLM 0.33's series without a counterpart, and the reason.
ABSENT: tuple[tuple[Sequence[str], str], ...] = (
    (
        ("prompt_tokens", "request_success", "time_to_first_token_seconds", "and all other histograms"),
        "on workers: a request passes two of them, so only routers measure requests",
    ),
    (
        ("iteration_tokens_total",),
        "steps of workers are not reported one by one; `baton:step_seconds` has their time",
    ),
    (
        ("num_requests_waiting_by_reason", "num_requests_kv_fetch_by_stage"),
        "`baton:num_requests_waiting` counts requests that receive KV too; `GET /workers` tells them apart",
    ),
    (
        ("prompt_tokens_by_source", "prompt_tokens_cached_by_source"),
        "`baton:kv_tier_fetched_blocks_total` counts blocks of stores, not tokens of prompts",
    ),
    (
        ("external_prefix_cache_queries", "external_prefix_cache_hits"),
        "the router's `prefix_cache_hits` includes KV from stores and other workers",
    ),
    (("request_num_preemptions",), "preemptions are counted by worker, not by request"),
    (("request_prefill_kv_computed_tokens",), "`baton:worker_prefilled_tokens_total` has their sum by worker"),
    (("admission_rejections",), "`baton:router_refusals_total` has other reasons"),
    (
        ("kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds"),
        "the life of single blocks is not sampled",
    ),
    (("mm_cache_queries", "mm_cache_hits"), "hits of the cache of images are not counted"),
    (("engine_sleep_state",), "engines do not sleep; pools scale to zero instead"),
    (("corrupted_requests",), "logits are not searched for NaN"),
    (("watermark_requests", "diffusion_*"), "there are no such features"),
    (("estimated_*",), "FLOPs and bytes of steps are not estimated"),
    (
        ("nixl_*", "kv_offload_*"),
        '`baton:handover*` (`nixl_xfer_time_seconds` is `baton:handover_seconds` with `phase="read"`) and '
        "`baton:kv_tier_*`, which count the same for all transports",
    ),
    (("http_requests_total", "http_request_duration_seconds"), "a proxy's metrics, or [traces](../tracing.md)"),
)


def vllm_metrics() -> str:
    """Return the table of vLLM's series that Baton has."""
    on_worker = {each.name for each in OF_WORKER}
    rows: dict[str, tuple[list[str], str]] = {}
    for each in OF_ROUTER:
        sources, _ = rows.setdefault(each.name, ([], "router, worker" if each.name in on_worker else "router"))
        sources.append(_source(each))
    return table(
        ("vLLM's series, with `vllm:`", "of Baton, with `baton:`", "at", "note"),
        ((code(name), ", ".join(sources), where, NOTES.get(name, "")) for name, (sources, where) in rows.items()),
    )


def _source(series: VllmSeries) -> str:
    return str(series.constant) if series.constant is not None else code(series.source)


def vllm_absent() -> str:
    """Return the table of vLLM's series without a counterpart."""
    rows = ((", ".join(name if " " in name else code(name) for name in names), reason) for names, reason in ABSENT)
    return table(("vLLM's series", "why not, or what instead"), rows)
