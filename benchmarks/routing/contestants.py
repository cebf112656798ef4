"""Compared systems and their settings."""

from collections.abc import Sequence

from benchmarks.routing.passing.systems import baton_pass_through, dynamo_pass_through, http_pass_through
from benchmarks.routing.system import NOTHING, NOTHING_DYNAMO, NOTHING_HTTP, System, baton, dynamo, sglang

BATON = baton("cost", "baton")
# The best settings found for these workloads; docs/benchmarks.md lists the others that were tried.
SGLANG = sglang(
    "sglang-router", "--policy", "cache_aware",
    pd_options=("--prefill-policy", "cache_aware", "--decode-policy", "power_of_two"),
)  # fmt: skip
LOCAL_BELOW = '{"policy": "isl_bounding", "eff_isl_threshold": 128, "eff_isl_ratio_threshold": 1.0}'
DYNAMO = dynamo(
    "dynamo", "--router-prefill-load-scale", "4", "--router-decode-active-request-weight", "8",
    pd_options=("--router-conditional-disagg", "--router-conditional-disagg-config", LOCAL_BELOW),
)  # fmt: skip
ROUTED = (BATON, baton("round_robin", "round robin"), SGLANG, DYNAMO)  # compared by where they send requests
COSTED = (
    baton_pass_through(NOTHING), BATON, http_pass_through(NOTHING_HTTP), SGLANG,
    dynamo_pass_through(NOTHING_DYNAMO), DYNAMO,
)  # fmt: skip  # compared by what their request path costs


def by_name(systems: Sequence[System], names: str) -> list[System]:
    """Return the systems with these comma-separated names; "" for all. Raises ValueError if none matches."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    found = [system for system in systems if not wanted or system.name in wanted]
    if not found:
        raise ValueError(f"none of {', '.join(system.name for system in systems)} is named by {names!r}")
    return found
