"""The dashboard of latency objectives (SLOs): quantiles, attainment, burn of the error budget."""

from scripts.dashboards.board import MODELS, ROUTERS, Board, Choice, Panel, Query, Section, quantile, quantiles, total

TTFT, TPOT = "time_to_first_token_seconds", "request_time_per_output_token_seconds"
ITL, E2E = "inter_token_latency_seconds", "e2e_request_latency_seconds"
BOUNDS = {TTFT: "$ttft", TPOT: "$tpot"}
NAMES = {TTFT: "TTFT", TPOT: "TPOT"}
WINDOWS = ("5m", "30m", "1h", "6h")  # of the alerts


def attainment(name: str, window: str = "$__rate_interval", by: str = "") -> str:
    """Return the share of a histogram's values that meet its objective."""
    grouping = f" by ({by})" if by else ""
    bucket = f'rate(baton:{name}_bucket{{{MODELS},le="{BOUNDS[name]}"}}[{window}])'
    return f"sum{grouping} ({bucket}) / sum{grouping} (rate(baton:{name}_count{{{MODELS}}}[{window}]))"


def burn(name: str, window: str) -> str:
    """Return how much faster than allowed the error budget is used: at 1 it lasts for exactly its period."""
    return f"(1 - {attainment(name, window)}) / (1 - $objective)"


def _stats() -> Section:
    panels = []
    for name, title in NAMES.items():
        panels += [
            Panel(
                f"{title} attained",
                f"Share that met the objective over the last hour ({BOUNDS[name]} s).",
                "percentunit",
                [Query(attainment(name, "1h"))],
                kind="stat",
                good_from=0.95,
            ),
            Panel(
                f"{title} burn rate",
                "Over the last hour. At 1 the error budget lasts for exactly its period.",
                "none",
                [Query(burn(name, "1h"))],
                kind="stat",
                good_below=1,
            ),
            Panel(f"{title} p95", "Now.", "s", [Query(quantile(0.95, name))], kind="stat"),
        ]
    return Section("Now", panels)


def _latencies() -> Section:
    return Section(
        "Latency",
        (
            Panel("Time to first token", "From the request to its first token, queues included.", "s", quantiles(TTFT)),
            Panel("Time per output token", "A completion's mean time between two tokens.", "s", quantiles(TPOT)),
            Panel("Inter-token latency", "Each single time between two tokens.", "s", quantiles(ITL)),
            Panel("Request to last token", "End to end.", "s", quantiles(E2E)),
            Panel("Prefill", "From the command to a worker until the first token.", "s", _phase("prefill")),
            Panel("Decode", "First token to last token.", "s", _phase("decode")),
        ),
    )


def _phase(name: str) -> tuple[Query, ...]:
    return quantiles(f"request_{name}_time_seconds")


def _budget() -> Section:
    panels = [
        Panel(
            f"{title} attainment",
            f"Share of values up to {BOUNDS[name]} s, one of the histogram's bounds.",
            "percentunit",
            [Query(attainment(name), "attained"), Query(f"0 * sum(up{{{ROUTERS}}}) + $objective", "objective")],
        )
        for name, title in NAMES.items()
    ]
    panels += [
        Panel(
            f"{title} burn rate",
            "By window. The alerts fire at 14.4 over 1h and 5m, and at 6 over 6h and 30m.",
            "none",
            [Query(burn(name, window), window) for window in WINDOWS],
        )
        for name, title in NAMES.items()
    ]
    served, refused = total("request_params_n_count"), total("router_refusals_total")
    panels.append(
        Panel(
            "Served",
            "Share of the requests that were not refused, and of the completions that did not end with an error.",
            "percentunit",
            [
                Query(f"{served} / ({served} + {refused})", "not refused"),
                Query(
                    f'sum(rate(baton:request_success_total{{{MODELS},finished_reason!="error"}}[$__rate_interval])) / '
                    f"{total('request_success_total')}",
                    "without an error",
                ),
            ],
        )
    )
    return Section("Error budget", panels)


def _by_model() -> Section:
    label = "{{model_name}}"
    panels = [
        Panel(f"{title} p95 by model", "", "s", [Query(quantile(0.95, name, by="model_name"), label)])
        for name, title in NAMES.items()
    ]
    panels += [
        Panel(
            f"{title} attainment by model",
            "Share of values that meet the objective.",
            "percentunit",
            [Query(attainment(name, by="model_name"), label)],
        )
        for name, title in NAMES.items()
    ]
    panels.append(
        Panel(
            "Completions by model",
            "Per second.",
            "reqps",
            [Query(total("request_success_total", by="model_name"), label)],
            stacked=True,
        )
    )
    return Section("By model", panels)


OBJECTIVES = Board(
    "objectives",
    "Baton: objectives",
    "Latency objectives: quantiles, attainment, and the burn rate of the error budget.",
    (_stats(), _latencies(), _budget(), _by_model()),
    (
        Choice(
            "ttft", "TTFT objective in s", ("1.0", "0.1", "0.25", "0.5", "0.75", "2.5", "5.0", "7.5", "10.0", "20.0")
        ),
        Choice("tpot", "TPOT objective in s", ("0.05", "0.01", "0.025", "0.075", "0.1", "0.15", "0.2", "0.3", "0.5")),
        Choice("objective", "Share that must meet it", ("0.95", "0.9", "0.99", "0.999")),
    ),
)
