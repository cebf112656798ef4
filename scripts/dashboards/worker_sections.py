"""Sections of workers: pools, KV, handovers, control and tools."""

from scripts.dashboards.board import (
    INTERVAL,
    MODELS,
    ROUTERS,
    WORKERS,
    Panel,
    Query,
    Section,
    by_role,
    gauge,
    of_workers,
    quantiles,
    rate,
    total,
)


def _workers_total(name: str) -> str:
    """Return the sum of a counter of workers, each of which several routers report."""
    return f"sum({of_workers(rate(name, WORKERS))})"


def _handover_quantile(share: float, by: str) -> str:
    """Return a quantile of the seconds of handovers, which several routers report."""
    buckets = of_workers(rate("handover_seconds_bucket", WORKERS), "worker, transport, phase, le")
    return f"histogram_quantile({share}, sum by (le, {by}) ({buckets}))"


def _by_transport(expression: str) -> str:
    """Return the sum over workers of a counter by transport."""
    return f"sum by (transport) ({of_workers(expression, 'worker, transport')})"


READS = f'{WORKERS},phase="read"'
POOLS = Section(
    "Pools",
    (
        Panel(
            "Workers",
            "By role and state, from the router that sees most of them.",
            "none",
            [Query(f"max by (role, state) ({gauge('workers', MODELS)}) > 0", "{{role}} {{state}}")],
        ),
        Panel(
            "Draining",
            "Workers that take no new requests, or have drained.",
            "none",
            [
                Query(
                    f'max by (role, state) (baton:workers{{{MODELS},state=~"draining|drained"}}) > 0',
                    "{{role}} {{state}}",
                )
            ],
        ),
        Panel(
            "Workers lost",
            "Workers that died or were disconnected without draining.",
            "none",
            [Query(f"max by (role) (increase(baton:workers_lost_total{{{MODELS}}}{INTERVAL}))", "{{role}}")],
        ),
        Panel(
            "Restarts of processes",
            "Supervised processes that ended and were started again, by the watchdog too. None on Ray.",
            "none",
            [
                Query(
                    f"max by (name) (increase(baton:process_restarts_total{{{ROUTERS}}}{INTERVAL})) > 0",
                    "{{name}}",
                )
            ],
        ),
        Panel(
            "Autoscaler",
            "Replicas that the autoscaler has asked for, and that the traffic needs by its model.",
            "none",
            [
                Query(f"max by (pool) ({gauge('autoscaler_target', MODELS)})", "{{pool}} target"),
                Query(f"max by (pool) ({gauge('autoscaler_needed', MODELS)})", "{{pool}} needed"),
            ],
        ),
        Panel(
            "Tokens computed",
            "Prompt tokens computed and tokens generated per second, by the workers of each role.",
            "short",
            [
                Query(by_role(rate("worker_prefilled_tokens_total", WORKERS)), "{{role}} prefilled"),
                Query(by_role(rate("worker_generation_tokens_total", WORKERS)), "{{role}} generated"),
            ],
        ),
    ),
)
KV = Section(
    "KV cache",
    (
        Panel(
            "KV cache in use",
            "Share of the KV blocks: mean of each role, and its fullest worker.",
            "percentunit",
            [
                Query(by_role(gauge("kv_cache_usage_perc"), "avg"), "{{role}} mean"),
                Query(by_role(gauge("kv_cache_usage_perc"), "max"), "{{role}} fullest"),
            ],
        ),
        Panel(
            "Prefix cache hit rate",
            "Share of the prompt tokens that no worker had to compute.",
            "percentunit",
            [Query(f"{total('prefix_cache_hits_total')} / {total('prefix_cache_queries_total')}", "hit rate")],
        ),
        Panel(
            "Preemptions",
            "Requests that lost their KV blocks to others, and are computed again.",
            "ops",
            [Query(by_role(rate("num_preemptions_total", WORKERS)), "{{role}}")],
        ),
        Panel(
            "KV in stores",
            "Bytes in the stores below the KV cache. Workers that share a store report the same ones.",
            "bytes",
            [Query(f"max by (tier) ({gauge('kv_tier_num_bytes')})", "{{tier}}")],
        ),
        Panel(
            "Blocks fetched from stores",
            "Per second, by store.",
            "ops",
            [
                Query(
                    f"sum by (tier) ({of_workers(rate('kv_tier_fetched_blocks_total', WORKERS), 'worker, tier')})",
                    "{{tier}}",
                )
            ],
        ),
        Panel(
            "Failures of stores",
            "Lookups, reads and writes that failed. A store that fails is skipped for up to a minute.",
            "ops",
            [
                Query(
                    f"sum by (tier) ({of_workers(rate('kv_tier_failures_total', WORKERS), 'worker, tier')})", "{{tier}}"
                )
            ],
        ),
    ),
)


HANDOVER = Section(
    "Handover",
    (
        Panel(
            "KV handed over",
            "Bytes of KV that workers received.",
            "Bps",
            [Query(_workers_total("handover_bytes_total"), "received")],
        ),
        Panel(
            "Handovers",
            "Received and failed handovers; a failed handover pauses its request, but never fails it.",
            "ops",
            [
                Query(_workers_total("handovers_total"), "received"),
                Query(_workers_total("handover_failures_total"), "failed"),
                Query(_workers_total("checksum_failures_total"), "blocks refused for their checksum"),
            ],
        ),
        Panel(
            "Bytes of a handover",
            "Mean of the handovers received.",
            "bytes",
            [Query(f"{_workers_total('handover_bytes_total')} / {_workers_total('handovers_total')}", "mean")],
        ),
        Panel(
            "Seconds of a handover",
            "95th percentile, by phase: pull is from the first read to the last block checked, tail from the last "
            "block computed; exposed is reading that no computation hides.",
            "s",
            [Query(_handover_quantile(0.95, "phase"), "{{phase}}")],
        ),
        Panel(
            "Rate of reads",
            "Bytes that handovers read per second of reading, by transport.",
            "Bps",
            [
                Query(
                    f"{_by_transport(rate('handover_read_bytes_total', WORKERS))}"
                    f" / {_by_transport(rate('handover_seconds_sum', READS))}",
                    "{{transport}}",
                )
            ],
        ),
        Panel(
            "Transports",
            "Pairs of workers by the transport of their KV.",
            "none",
            [
                Query(
                    f"count by (transport) ({of_workers(gauge('kv_transport_info'), 'worker, peer, transport')})",
                    "{{transport}}",
                )
            ],
        ),
        Panel(
            "Prefill, handover included",
            "From the command to the first worker until the first token, queues of workers included.",
            "s",
            quantiles("request_prefill_time_seconds"),
        ),
        Panel(
            "Speculative decoding",
            "Share of the drafted tokens that were right.",
            "percentunit",
            [
                Query(
                    f"{_workers_total('spec_decode_num_accepted_tokens_total')} / "
                    f"{_workers_total('spec_decode_num_draft_tokens_total')}",
                    "accepted",
                )
            ],
        ),
    ),
)
CONTROL = Section(
    "Control",
    (
        Panel(
            "Registry",
            "1 while every router can reach the registry.",
            "none",
            [Query(f"min({gauge('registry_connected', MODELS)})", "connected")],
        ),
        Panel(
            "Workers in the registry",
            "From the routers' last listing.",
            "none",
            [Query(f"max by (instance) ({gauge('registry_members', MODELS)})", "{{instance}}")],
        ),
        Panel(
            "Degraded routers",
            "1 until a router knows what every worker in reach has cached.",
            "none",
            [Query(f"max by (instance) ({gauge('router_degraded', MODELS)})", "{{instance}}")],
        ),
    ),
    is_collapsed=True,
)
TOOLS = Section(
    "Structured output and tool calls",
    (
        Panel(
            "Tool calls",
            "Calls per second, by the reason for which their completions ended, and those with invalid arguments.",
            "short",
            [
                Query(total("tool_calls_total", by="finished_reason"), "{{finished_reason}}"),
                Query(total("tool_call_invalid_arguments_total"), "invalid arguments"),
            ],
        ),
        Panel(
            "Grammars",
            "Grammars compiled per second, and requests that found theirs in the cache.",
            "short",
            [
                Query(_workers_total("grammar_compiles_total"), "compiled"),
                Query(_workers_total("grammar_cache_hits_total"), "in the cache"),
            ],
        ),
        Panel(
            "Time of compiling",
            "Mean seconds of compiling a grammar.",
            "s",
            [
                Query(
                    f"{_workers_total('grammar_compile_seconds_total')} / {_workers_total('grammar_compiles_total')}",
                    "mean",
                )
            ],
        ),
        Panel(
            "Time of a mask",
            "Mean CPU seconds of matching a token and filling the next mask.",
            "s",
            [
                Query(
                    f"{_workers_total('grammar_mask_seconds_total')} / {_workers_total('grammar_masks_total')}", "mean"
                )
            ],
        ),
        Panel(
            "Forced tokens",
            "Output tokens per second that grammars forced, without a step each.",
            "short",
            [Query(_workers_total("grammar_forced_tokens_total"), "forced")],
        ),
        Panel(
            "Late masks",
            "Masks per second that were not filled in time, so that their requests missed a step.",
            "short",
            [Query(_workers_total("grammar_late_masks_total"), "late")],
        ),
    ),
    is_collapsed=True,
)
WORKERS_ROW = Section(
    "By worker",
    tuple(
        Panel(title, text, unit, [Query(of_workers(expression), "{{worker}}")])
        for title, text, unit, expression in (
            ("KV cache in use", "Share of the KV blocks.", "percentunit", gauge("kv_cache_usage_perc")),
            ("Requests in the batch", "", "short", gauge("num_requests_running")),
            ("Requests waiting", "Admitted, but not in the batch.", "short", gauge("num_requests_waiting")),
            ("Step", "Recent seconds per step.", "s", gauge("step_seconds")),
            ("Tokens generated", "Per second.", "short", rate("worker_generation_tokens_total", WORKERS)),
            ("Prompt tokens computed", "Per second.", "short", rate("worker_prefilled_tokens_total", WORKERS)),
        )
    ),
    is_collapsed=True,
)
