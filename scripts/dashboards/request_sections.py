"""Sections of requests: those of now, traffic, and the queue."""

from scripts.dashboards.board import (
    MODELS,
    ROUTERS,
    Panel,
    Query,
    Section,
    by_role,
    gauge,
    quantile,
    quantiles,
    total,
)


def _ready(roles: str) -> str:
    """Return the number of ready workers, from the router process that sees most of them."""
    workers = f'baton:workers{{{MODELS},role=~"{roles}|both",state="ready"}}'
    return f"max(sum by (instance, process) ({workers}))"


def _refused_share() -> str:
    refused = total("router_refusals_total")
    return f"{refused} / ({refused} + {total('request_params_n_count')})"


NOW = Section(
    "Now",
    (
        Panel(
            "Routers",
            "Routers that Prometheus reaches.",
            "none",
            [Query(f"sum(up{{{ROUTERS}}})")],
            kind="stat",
            good_from=1,
        ),
        Panel(
            "Prefill workers",
            "Ready workers, from the router that sees most of them.",
            "none",
            [Query(_ready("prefill"))],
            kind="stat",
            good_from=1,
        ),
        Panel(
            "Decode workers",
            "Ready workers, from the router that sees most of them.",
            "none",
            [Query(_ready("decode"))],
            kind="stat",
            good_from=1,
        ),
        Panel(
            "Requests",
            "Completions that ended per second.",
            "reqps",
            [Query(total("request_success_total"))],
            kind="stat",
        ),
        Panel(
            "TTFT p95",
            "From the request to its first token.",
            "s",
            [Query(quantile(0.95, "time_to_first_token_seconds"))],
            kind="stat",
        ),
        Panel(
            "Refused",
            "Share of refused requests, most of them with 429.",
            "percentunit",
            [Query(_refused_share())],
            kind="stat",
            good_below=0.01,
        ),
    ),
)
TRAFFIC = Section(
    "Traffic",
    (
        Panel(
            "Completions ended, by reason",
            "`error` is a failure; `abort` means that the client disconnected or its time limit was reached.",
            "reqps",
            [Query(total("request_success_total", by="finished_reason"), "{{finished_reason}}")],
            stacked=True,
        ),
        Panel(
            "Requests refused, by reason",
            "Most get 429: docs/admission.md has the reasons.",
            "reqps",
            [Query(total("router_refusals_total", by="reason"), "{{reason}}")],
            stacked=True,
        ),
        Panel(
            "Tokens",
            "Prompt tokens of the requests served, cached or not, and tokens generated, per second.",
            "short",
            [
                Query(total("prompt_tokens_total"), "prompt"),
                Query(total("generation_tokens_total"), "generated"),
            ],
        ),
        Panel("Prompt length", "Tokens per prompt.", "short", quantiles("request_prompt_tokens")),
        Panel("Output length", "Tokens of a completion.", "short", quantiles("request_generation_tokens")),
        Panel(
            "Sent again",
            "Requests that continued on another worker: theirs was lost (failover) or drained (handed off).",
            "reqps",
            [
                Query(total("failovers_total"), "failover"),
                Query(total("requests_handed_off_total"), "handed off"),
            ],
        ),
    ),
)
QUEUE = Section(
    "Queue",
    (
        Panel(
            "Router's queue",
            "Completions in flight and waiting, of all routers; the capacity is that of one router.",
            "short",
            [
                Query(f"sum({gauge('router_inflight', MODELS)})", "in flight"),
                Query(f"sum({gauge('router_waiting', MODELS)})", "waiting"),
                Query(f"max({gauge('router_capacity', MODELS)})", "capacity"),
            ],
        ),
        Panel(
            "Time in the router's queue",
            "Of the requests that waited there and were then admitted.",
            "s",
            quantiles("request_queue_time_seconds"),
        ),
        Panel(
            "Requests at workers",
            "Requests in the batch, and requests that are admitted but not in it.",
            "short",
            [
                Query(by_role(gauge("num_requests_running")), "{{role}} running"),
                Query(by_role(gauge("num_requests_waiting")), "{{role}} waiting"),
            ],
        ),
        Panel(
            "Queued tokens",
            "Tokens to compute until all admitted requests are decoding.",
            "short",
            [Query(by_role(gauge("num_queued_tokens")), "{{role}}")],
        ),
        Panel(
            "Where prompts are prefilled",
            "Share of completions by plan, such as local (by the decode worker) or remote (by a prefill worker).",
            "percentunit",
            [
                Query(
                    f"{total('requests_by_plan_total', by='plan')} / ignoring (plan) group_left () "
                    f"{total('requests_by_plan_total')}",
                    "{{plan}}",
                )
            ],
            stacked=True,
        ),
        Panel(
            "Output that clients have not read",
            "Bytes of it in the routers' memory, and of request bodies that are being received.",
            "bytes",
            [
                Query(f"sum(baton:router_unread_bytes{{{ROUTERS}}})", "unread output"),
                Query(f"sum(baton:router_body_bytes{{{ROUTERS}}})", "bodies"),
            ],
        ),
    ),
)
